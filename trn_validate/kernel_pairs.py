"""Speed and memory of a model with kernels beside the same without: recorded, judged by nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trn_validate.base import median
from trn_validate.folded import GlobalStep

_SETTLING = 2
"""The first step allocates, and in a compiled run compiles; the second is the first without."""


@dataclass(frozen=True)
class Pair:
    """The steps of two runs that differ by their kernels alone."""

    without: Sequence[GlobalStep]
    with_: Sequence[GlobalStep]

    @property
    def ratio(self) -> float | None:
        """Median step seconds with kernels over those without; None where all steps settle."""
        ours, theirs = (_seconds(steps) for steps in (self.with_, self.without))
        return median(ours) / median(theirs) if ours and theirs else None


def pair_measures(pairs: Sequence[Pair]) -> dict[str, float]:
    """Seconds of a steady step, peak memory, and the ratio with its spread.

    Of several pairs, the spread is over pairs. Of one it is over steps: from the fastest step with
    kernels over the slowest without, to the slowest over the fastest.
    """
    with_, without = [pair.with_ for pair in pairs], [pair.without for pair in pairs]
    found = {
        "pairs": float(len(pairs)),
        "peak_memory_bytes": _peak(with_),
        "without_peak_memory_bytes": _peak(without),
    }
    ratios = [ratio for pair in pairs if (ratio := pair.ratio) is not None]
    if not ratios:
        return found
    ours, theirs = ([t for steps in side for t in _seconds(steps)] for side in (with_, without))
    alone = len(ratios) == 1
    return found | {
        "step_seconds": median(ours),
        "without_step_seconds": median(theirs),
        "with_over_without": median(ratios),
        "with_over_without_least": min(ours) / max(theirs) if alone else min(ratios),
        "with_over_without_most": max(ours) / min(theirs) if alone else max(ratios),
    }


def claim(measures: dict[str, float]) -> str:
    """What may be said of the speed: nothing where the spread covers both directions."""
    least, most = (measures.get(f"with_over_without_{end}") for end in ("least", "most"))
    if least is None or most is None:
        return "too few steps to time"
    spread = f"{least:.3f} to {most:.3f} times the step without, {measures['pairs']:.0f} pairs"
    if least <= 1.0 <= most:
        return f"no difference that can be told from the spread: {spread}"
    return f"{'faster' if most < 1.0 else 'slower'}: {spread}"


def _seconds(steps: Sequence[GlobalStep]) -> list[float]:
    return [step.seconds for step in steps[_SETTLING:]]


def _peak(runs: Sequence[Sequence[GlobalStep]]) -> float:
    return float(max((step.peak_memory_bytes for steps in runs for step in steps), default=0))
