from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import global_step
from trn_validate.folded import GlobalStep
from trn_validate.kernel_pairs import Pair, claim, pair_measures


def steps(*seconds: float, peak: int = 100) -> tuple[GlobalStep, ...]:
    """Two steps that settle, then these."""
    return tuple(
        global_step(number, seconds=took, peak_memory_bytes=peak)
        for number, took in enumerate((9.0, 8.0, *seconds), start=1)
    )


def measured(*pairs: tuple[Sequence[float], Sequence[float]]) -> dict[str, float]:
    """Of the seconds without and with kernels."""
    return pair_measures([Pair(steps(*without), steps(*with_)) for without, with_ in pairs])


def test_the_first_two_steps_are_left_out() -> None:
    found = measured(((1.0, 1.0), (2.0, 2.0)))
    assert found["with_over_without"] == 2.0
    assert (found["step_seconds"], found["without_step_seconds"]) == (2.0, 1.0)


def test_of_one_pair_the_spread_is_over_steps() -> None:
    found = measured(((1.0, 1.25), (1.0, 1.5)))
    assert (found["with_over_without_least"], found["with_over_without_most"]) == (0.8, 1.5)


def test_of_several_pairs_the_spread_is_over_pairs() -> None:
    found = measured(((1.0, 4.0), (2.5, 2.5)), ((1.0, 1.0), (2.0, 2.0)), ((1.0,), (3.0,)))
    assert found["pairs"] == 3.0
    assert found["with_over_without"] == 2.0
    assert (found["with_over_without_least"], found["with_over_without_most"]) == (1.0, 3.0)


def test_memory_is_the_peak_of_each_side() -> None:
    pairs = [Pair(steps(1.0, peak=5), steps(1.0, peak=7)), Pair(steps(1.0, peak=6), steps(1.0))]
    found = pair_measures(pairs)
    assert (found["without_peak_memory_bytes"], found["peak_memory_bytes"]) == (6.0, 100.0)


@pytest.mark.parametrize(
    ("with_", "told"),
    [
        ((1.0, 1.1), "no difference that can be told"),
        ((0.5, 0.6), "faster: 0.4"),
        ((3.0, 3.5), "slower: 2.7"),
        ((), "too few steps"),
    ],
)
def test_nothing_is_claimed_where_the_spread_covers_both(
    with_: tuple[float, ...], told: str
) -> None:
    assert claim(measured(((1.0, 1.1), with_))).startswith(told)


def test_without_a_steady_step_there_is_no_ratio() -> None:
    found = measured(((), ()))
    assert "with_over_without" not in found and found["pairs"] == 1.0
