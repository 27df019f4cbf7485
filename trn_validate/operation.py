"""What a probe of single operations is told, and what it answers.

Nothing here imports torch, so that both sides read the same types.
"""

from typing import Literal

from trn_validate.base import Real, Record


class OperationSpec(Record):
    """All that the process of one operation is told."""

    name: str
    operation: str
    answer: str
    """File to leave the answer in."""
    device: str
    """Device type, in torch's words."""
    hooks: tuple[str, ...] = ()
    """Import paths ``module:function`` that spoil torch's functions; tests alone set them."""


class Compare(Record):
    """One tensor of one operation, in one dtype, against the CPU."""

    what: str
    """Dtype and tensor: output or which gradient."""
    largest: Real = 0.0
    """Largest error, in those that the CPU makes in the same dtype."""
    norm: Real = 0.0
    """L2 norm of the error, likewise."""
    differing: int = 0
    """Elements that are not what they have to be, where no rounding is allowed."""
    degenerate: str = ""
    """``zero``, ``constant``, ``not finite``, or another shape or dtype, and it must not be."""


class OperationAnswer(Record):
    """What one operation came to."""

    operation: str
    pid: int
    started: float
    """When the process began, in seconds since the epoch."""
    device: str
    """Device type on which its results really were."""
    versions: dict[str, str]
    hooks: tuple[str, ...]
    compared: tuple[Compare, ...] = ()
    refused: str = ""
    """The error that it raised."""
    fallbacks: tuple[str, ...] = ()
    """What ran on the CPU instead."""
    asked: Literal["", "torch_neuronx", "torch.neuron"] = ""
    """Who was asked for them; empty where nobody could be."""
    seconds: float


OPERATIONS = (
    "round trip float32",
    "round trip bfloat16",
    "round trip int64",
    "round trip int32",
    "round trip bool",
    "matmul",
    "softmax",
    "attention",
    "embedding",
    "masked assignment",
    "gather",
    "scatter",
    "topk",
    "cumsum",
    "cross entropy",
    "rms norm",
    "whole numbers",
    "adamw",
)
"""What is asked, each in a process of its own."""
EXACT = frozenset(
    {name for name in OPERATIONS if name.startswith("round trip")} | {"whole numbers"}
)
"""Of these nothing is rounded, so that nothing may differ."""
