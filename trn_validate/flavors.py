"""Shapes of the model flavours, so that a plan is judged without importing torch.

Source: torchtitan 0.3.0, models/qwen3/__init__.py; a test compares each row with the
registry itself. A plan for a module that is not in the table states its own ``shape``.
"""

from typing import Annotated

from pydantic import Field

from trn_validate.base import Record

_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Shape(Record):
    """What the arithmetic of a ladder needs to know of a model."""

    dim: _Count
    layers: _Count
    heads: _Count
    kv_heads: _Count
    vocab_size: _Count
    tied: bool
    experts: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


def _dense(
    dim: int, layers: int, heads: int, *, tied: bool, vocab_size: int = 151936, kv_heads: int = 8
) -> Shape:
    return Shape(
        dim=dim, layers=layers, heads=heads, kv_heads=kv_heads, vocab_size=vocab_size, tied=tied
    )


_QWEN3 = {
    "debugmodel": _dense(256, 8, 16, tied=True, vocab_size=2048),
    "debugmodel_non_fused_qkv": _dense(256, 8, 16, tied=True, vocab_size=2048),
    "0.6B": _dense(1024, 28, 16, tied=True),
    "1.7B": _dense(2048, 28, 16, tied=True),
    "4B": _dense(2560, 36, 32, tied=True),
    "8B": _dense(4096, 36, 32, tied=False),
    "14B": _dense(5120, 40, 40, tied=False),
    "32B": _dense(5120, 64, 64, tied=False),
    "debugmodel_moe": _dense(256, 8, 16, tied=False, vocab_size=2048).model_copy(
        update={"experts": 64}
    ),
    "30B-A3B": _dense(2048, 48, 32, tied=False, kv_heads=4).model_copy(update={"experts": 128}),
    "235B-A22B": _dense(4096, 94, 64, tied=False, kv_heads=4).model_copy(update={"experts": 128}),
}

FLAVORS: dict[str, dict[str, Shape]] = {
    "torchtitan.models.qwen3": _QWEN3,
    # The fork's registry cannot be read here; its documents name the same models, and the
    # shapes are compared with the plan's model before the first rung runs on a Trn2.
    "torchtitan_neuron.models.qwen3": _QWEN3,
}
