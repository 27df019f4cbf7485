"""What the ranks of one launch recorded, reduced to what a page shows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trn_validate.base import median
from trn_validate.folded import GlobalStep
from trn_validate.folding import fold
from trn_validate.ranks import RankRecord, read_each
from trn_validate.records import Compilation, Kernels, Step

PHASES = ("data", "forward_backward", "optimizer", "probe", "capture")
"""Parts of a step's seconds, in the order in which a step goes through them."""

TOTAL = "total"


@dataclass(frozen=True)
class RankFigures:
    """One rank of a launch."""

    rank: int
    peak_bytes: int
    seconds: Mapping[str, float]
    """Median wall seconds of a step by phase, ``total`` among them; the first step, which
    allocates and compiles, is left out. Empty where it took no second step."""


@dataclass(frozen=True)
class LaunchFigures:
    """One launch of one attempt."""

    stage: str
    attempt: int
    name: str
    steps: tuple[GlobalStep, ...]
    ranks: tuple[RankFigures, ...]
    compilation: Compilation | None = None
    """Of the rank that spent most time in the compiler."""
    kernels: Kernels | None = None
    """Of the first rank that left a record of them."""

    @property
    def place(self) -> str:
        """``<stage>/<attempt>/<launch>``, as comparisons name it."""
        return f"{self.stage}/{self.attempt}/{self.name}"

    @property
    def slowest(self) -> RankFigures | None:
        """The rank with the longest step."""
        timed = [rank for rank in self.ranks if TOTAL in rank.seconds]
        return max(timed, key=lambda rank: (rank.seconds[TOTAL], -rank.rank), default=None)


def read_launch(folder: Path, stage: str, attempt: int, name: str) -> LaunchFigures | None:
    """Figures of the launch whose records are in ``folder``; None where no rank left a header.

    Raises:
        EvidenceError: a record cannot be read.
    """
    files = folder.glob("rank-*.jsonl")
    numbers = [int(number) for path in files if (number := path.stem[5:]).isdigit()]
    if not numbers:
        return None
    ranks: list[RankFigures] = []
    records = fold(_passing(folder, max(numbers) + 1, ranks))
    if not records.ranks:
        return None
    compiled = [r.compilation for r in records.ranks.values() if r.compilation is not None]
    called = (r.kernels for r in records.ranks.values() if r.kernels is not None)
    return LaunchFigures(
        stage=stage,
        attempt=attempt,
        name=name,
        steps=records.steps,
        ranks=tuple(ranks),
        compilation=max(compiled, key=lambda line: line.seconds, default=None),
        kernels=next(called, None),
    )


def _passing(
    folder: Path, world_size: int, ranks: list[RankFigures]
) -> Iterator[tuple[int, RankRecord]]:
    """Give the records one by one, and keep the figures of each in ``ranks``."""
    for rank, record in read_each(folder, world_size):
        peak = max((step.peak_memory_bytes for step in record.steps), default=0)
        ranks.append(RankFigures(rank, peak, _by_phase(record.steps[1:])))
        yield rank, record


def _by_phase(steps: Sequence[Step]) -> dict[str, float]:
    names = (*PHASES, TOTAL) if steps else ()
    return {name: median([step.seconds.get(name, 0.0) for step in steps]) for name in names}
