"""Values of the probe tell a wrong collective from a right one, and are exact in bfloat16."""

from __future__ import annotations

import math

import pytest
import torch

from trn_validate.spec import Groups
from trn_validate.workload.collective_ops import compared, values
from trn_validate.workload.collectives import enumerated

WORLDS = (2, 3, 4, 8, 10, 16, 32, 64, 128)


@pytest.mark.parametrize("world", WORLDS)
def test_a_sum_over_the_ranks_is_exact_in_bfloat16_in_any_order(world: int) -> None:
    parts = [values(rank, 96, 5, 3) for rank in range(world)]
    assert int(sum(parts).max()) <= 256  # type: ignore[union-attr]  # a sum of tensors is one
    total = torch.zeros(96, dtype=torch.bfloat16)
    for part in parts:
        total += part.to(torch.bfloat16)
    assert torch.equal(total.long(), torch.stack(parts).sum(0))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("salt", range(0, 50, 7))
def test_a_sum_that_lacks_a_rank_or_has_one_twice_is_another(world: int, salt: int) -> None:
    parts = torch.stack([values(rank, 96, salt, 3) for rank in range(world)])
    assert parts.any(1).all(), "no rank adds nothing"
    assert parts.sum(0).unique().numel() > 1


@pytest.mark.parametrize("salt", range(50))
def test_no_two_ranks_send_the_same_and_no_two_operations_do(salt: int) -> None:
    sent = {tuple(values(rank, 96, salt).tolist()) for rank in range(128)}
    assert len(sent) == 128
    assert values(0, 96, salt).tolist() != values(0, 96, salt + 1).tolist()
    assert int(values(3, 96, salt).max()) < 256


def test_values_that_differ_are_named_with_their_place() -> None:
    one = torch.tensor([1.0, 2.0, 3.0])
    assert compared(one, one.clone()) == ""
    assert compared(one, torch.tensor([1.0, 5.0, 4.0])) == "element 1 is 2, not 5; 2 of 3 differ"
    assert compared(one[0], torch.tensor(2.0)) == "element 0 is 1, not 2; 1 of 1 differ"


def test_nan_is_never_right_and_neither_is_another_dtype_or_shape() -> None:
    nan = torch.tensor([math.nan])
    assert compared(nan, nan.clone()) != ""
    assert "torch.bfloat16" in compared(torch.ones(2, dtype=torch.bfloat16), torch.ones(2))
    assert "(1,)" in compared(torch.ones(1), torch.ones(2))
    assert compared({"a": 1}, {"a": 2}) != "" and compared({"a": 1}, {"a": 1}) == ""


def test_groups_are_those_of_a_mesh_axis() -> None:
    assert enumerated(Groups(size=2, stride=1), 4) == [(0, 1), (2, 3)]
    assert enumerated(Groups(size=2, stride=2), 4) == [(0, 2), (1, 3)]
    assert enumerated(Groups(size=2, stride=2), 8) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    mesh = torch.arange(64).reshape(16, 4)
    assert enumerated(Groups(size=16, stride=4), 64) == [tuple(c) for c in mesh.T.tolist()]
