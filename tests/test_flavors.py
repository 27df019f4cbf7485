from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trn_validate.flavors import FLAVORS, Shape


@pytest.fixture(scope="module")
def registry() -> dict[str, Any]:
    """The model that torchtitan's own registry gives for each of its flavours."""
    from torchtitan.models.qwen3 import model_registry, qwen3_configs

    return {flavor: model_registry(flavor).model for flavor in qwen3_configs}


def shape(model: Any) -> dict[str, object]:
    """What a model's own config says of what the table says."""
    layers = {
        (
            layer.attention.n_heads,
            layer.attention.n_kv_heads or layer.attention.n_heads,
            layer.moe.num_experts if getattr(layer, "moe", None) is not None else 0,
        )
        for layer in model.layers
    }
    assert len(layers) == 1, "a row of the table stands for layers that are alike"
    heads, kv_heads, experts = layers.pop()
    return {
        "dim": model.dim,
        "layers": len(model.layers),
        "heads": heads,
        "kv_heads": kv_heads,
        "vocab_size": model.vocab_size,
        "tied": model.enable_weight_tying,
        "experts": experts,
    }


def test_the_table_has_every_flavor_of_the_registry_and_no_other(
    registry: dict[str, Any],
) -> None:
    assert list(FLAVORS["torchtitan.models.qwen3"]) == list(registry)


@pytest.mark.parametrize("flavor", FLAVORS["torchtitan.models.qwen3"])
def test_a_row_of_the_table_is_what_the_registry_builds(
    registry: dict[str, Any], flavor: str
) -> None:
    found = shape(registry[flavor])
    row = FLAVORS["torchtitan.models.qwen3"][flavor].model_dump()
    assert {name: row[name] for name in found} == found


def test_every_number_of_a_row_is_compared_here(registry: dict[str, Any]) -> None:
    assert set(shape(registry["debugmodel"])) == set(Shape.model_fields)


def test_the_fork_is_taken_to_have_the_same_models() -> None:
    assert FLAVORS["torchtitan_neuron.models.qwen3"] == FLAVORS["torchtitan.models.qwen3"]


@pytest.mark.parametrize(
    "changes",
    [{"dim": 0}, {"heads": -1}, {"experts": -1}, {"tied": None}, {"layers": 2**31}, {"bias": 1}],
)
def test_a_shape_that_no_model_has_is_refused(changes: dict[str, Any]) -> None:
    values = FLAVORS["torchtitan.models.qwen3"]["8B"].model_dump() | changes
    with pytest.raises(ValidationError, match=next(iter(changes))):
        Shape(**values)
