from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trn_validate.kernels.expert_blocks import lay_out
from trn_validate.kernels.tiles import ROWS

COUNTS = [[128, 256], [1], [0, 0, 5], [127, 129, 1], [3, 0, 200, 97, 0]]


def experts_of(counts: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


@pytest.mark.parametrize("behind", [0, 77])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_every_row_comes_back_from_a_block_of_its_expert(counts: list[int], behind: int) -> None:
    rows = sum(counts) + behind
    found = lay_out(torch.tensor(counts), rows)
    values = torch.arange(1.0, rows + 1).view(-1, 1)
    routed = torch.cat([values[: sum(counts)], torch.zeros(behind, 1)])
    spread = found.spread(values)
    assert torch.equal(found.gathered(spread), routed)
    owners = found.expert.flatten()[found.place[: sum(counts)] // ROWS]
    assert torch.equal(owners.long(), experts_of(counts))
    assert int((spread != 0).sum()) == sum(counts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=9).filter(lambda some: sum(some) > 0))
def test_no_expert_is_without_a_block_and_the_blocks_of_each_lie_together(some: list[int]) -> None:
    found = lay_out(torch.tensor(some), sum(some))
    owners = found.expert.flatten()
    assert len(owners) == sum(some) // ROWS + len(some)
    assert torch.equal(owners.unique().long(), torch.arange(len(some)))
    assert torch.equal(owners, owners.sort().values)
    starts = torch.ones(len(owners), dtype=torch.bool)
    starts[1:] = owners[1:] != owners[:-1]
    assert torch.equal(found.more.flatten(), (~starts).float())


def test_a_free_place_is_zero_even_if_rows_are_not_finite() -> None:
    found = lay_out(torch.tensor([1, 2]), 3)
    spread = found.spread(torch.full((3, 1), float("nan")))
    assert int(spread.isnan().sum()) == 3
    assert torch.equal(spread[~found.taken], torch.zeros(int((~found.taken).sum())))
