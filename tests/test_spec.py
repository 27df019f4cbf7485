from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.builders import run_spec
from trn_validate.spec import (
    AXES,
    Degrees,
    captures_folder,
)


def test_the_world_is_the_product_of_all_degrees_but_ep() -> None:
    degrees = Degrees(dp_replicate=2, dp_shard=3, tp=5, cp=7, pp=11, ep=13)
    assert degrees.world_size == 2 * 3 * 5 * 7 * 11
    assert degrees.data_parallel == 2 * 3


def test_every_axis_is_a_degree_and_every_degree_an_axis() -> None:
    assert tuple(Degrees.model_fields) == AXES
    assert all(getattr(Degrees(), axis) == 1 for axis in AXES)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_a_degree_is_a_whole_number_from_one(axis: str, value: object) -> None:
    with pytest.raises(ValidationError, match=axis):
        Degrees.model_validate({axis: value})


def test_a_layout_is_named_by_the_degrees_that_it_uses() -> None:
    assert str(Degrees()) == "one process"
    assert str(Degrees(tp=4, dp_shard=16)) == "dp_shard16 x tp4"


@pytest.mark.parametrize(
    ("local", "degrees", "expected"),
    [(4, {}, 1), (1, {}, 4), (1, {"dp_shard": 2}, 2), (2, {"dp_replicate": 2, "tp": 8}, 1)],
)
def test_accumulation_makes_up_for_a_smaller_local_batch(
    local: int, degrees: dict[str, int], expected: int
) -> None:
    spec = run_spec(local_batch_size=local, degrees=Degrees(**degrees))
    assert spec.accumulation == expected
    assert spec.accumulation * local * spec.degrees.data_parallel == spec.global_batch_size


def test_tokens_per_step_do_not_depend_on_the_layout() -> None:
    assert run_spec().tokens_per_step == 1024
    wide = run_spec(local_batch_size=1, degrees=Degrees(dp_shard=4, tp=2))
    assert wide.tokens_per_step == 1024


def test_tensors_are_kept_beside_the_records_and_not_among_them() -> None:
    spec = run_spec(records="attempt/fsdp/records")
    assert captures_folder(spec) == Path("attempt/fsdp/captures")


def test_a_launch_keeps_moves_and_counts_nothing_unless_it_is_told_to() -> None:
    spec = run_spec()
    assert (spec.capture, spec.keep_start, spec.perturb) == ("none", False, 0)
    assert not spec.count_communication
    assert spec.compiled is None


@pytest.mark.parametrize("value", [-1, True, 1.5, "1"])
def test_a_seed_of_signs_is_a_whole_number_from_zero(value: object) -> None:
    with pytest.raises(ValidationError, match="perturb"):
        run_spec(perturb=value)
