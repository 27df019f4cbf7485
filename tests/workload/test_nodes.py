from __future__ import annotations

from itertools import combinations

import pytest

from trn_validate.workload.nodes import rounds


@pytest.mark.parametrize("world", [2, 3, 4, 7, 64])
def test_every_pair_meets_once_and_nobody_is_in_two_pairs_at_a_time(world: int) -> None:
    every = list(rounds(world))
    pairs = [pair for one in every for pair in one]
    assert sorted(pairs) == list(combinations(range(world), 2))
    for one in every:
        ranks = [rank for pair in one for rank in pair]
        assert len(ranks) == len(set(ranks))
    assert len(every) == world - 1 + world % 2
