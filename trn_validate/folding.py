"""The records of all ranks of a launch, put together one rank at a time.

What grows with ranks x steps or ranks x parameters is folded as it is read and then let go, so
that the records of a thousand ranks need little more memory than those of four.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from trn_validate.errors import EvidenceError
from trn_validate.ranks import RankRecord, read_rank
from trn_validate.records import (
    Captured,
    Closing,
    Communication,
    Compilation,
    Header,
    Moment,
    State,
    Step,
    rank_file,
)

_MODULUS = 2**128
Shape = tuple[int, ...]


@dataclass(frozen=True)
class GlobalStep:
    """One optimizer step over all ranks."""

    step: int
    loss: float
    """As the first rank that holds it has it; NaN where none does."""
    grad_norm: float
    tokens: int
    """Tokens consumed, counted once per data-parallel rank."""
    rows: str
    """Digest of all rows, whatever rank read them and in whatever order."""
    loss_spread: float
    """Largest difference between ranks that hold the loss."""
    norm_spread: float
    """Largest relative difference of the gradient norm, which every rank holds, from the first."""
    split: str
    """Names ranks that share samples and yet did not see the same rows; empty if none."""
    seconds: float
    """Wall seconds on the slowest rank."""
    peak_memory_bytes: int


@dataclass(frozen=True)
class Rank:
    """One rank, without its steps and its digests of tensors."""

    header: Header
    steps: int
    states: tuple[State, ...]
    communication: Communication | None
    compilation: Compilation | None
    closing: Closing | None

    @property
    def complete(self) -> bool:
        """Whether the rank came to its last line with every step that it counted."""
        return self.closing is not None and self.closing.steps == self.steps

    def state(self, at: Literal["start", "end"], step: int) -> State | None:
        """The state recorded at that point, or None."""
        return next((s for s in self.states if s.at == at and s.step == step), None)


@dataclass(frozen=True)
class Records:
    """What all ranks of a launch recorded."""

    ranks: Mapping[int, Rank] = field(default_factory=dict)
    """Those that left at least a header."""
    steps: tuple[GlobalStep, ...] = ()
    """Only steps that every one of them recorded."""
    last_step: int | None = None
    """Last step that any of them finished."""
    captures: Mapping[Moment, tuple[Captured, ...]] = field(default_factory=dict)
    """By moment the record of each pipeline stage's first rank; a moment that a stage did not
    keep is not there."""
    apart: str = ""
    """Names a rank, and the first tensor, that differs from what its stage's first rank gathered.

    Every rank gathers each tensor over its own group, so replicas that drifted apart show here
    and nowhere else: the file is that of the first rank. A rank that kept nothing of a moment has
    shown nothing, and is named too."""
    not_finite: tuple[int, int, str] | None = None
    """First (step, rank, name) of a loss or gradient norm that is not a finite number."""
    again: tuple[int, tuple[int, ...]] = (0, ())
    """The rank that most often saw rows of one of its earlier steps, and at which steps."""
    shapes: Mapping[Shape, tuple[int, int]] = field(default_factory=dict)
    """Where each shape of the input came first, as (step, rank)."""

    @property
    def headers(self) -> tuple[Header, ...]:
        """The header of every rank that left one."""
        return tuple(rank.header for rank in self.ranks.values())

    @property
    def parameters(self) -> int:
        """Elements of the whole model: those of each pipeline stage, counted once."""
        if not self.ranks:
            return 0
        degrees = self.headers[0].degrees
        # pp is the outermost axis of torchtitan's mesh, so each stage is one block of ranks.
        firsts = range(0, degrees.world_size, degrees.world_size // degrees.pp)
        return sum(self.ranks[r].header.parameters for r in firsts if r in self.ranks)


def read_ranks(folder: Path, world_size: int) -> Records:
    """Records of every rank that left a header.

    Raises:
        EvidenceError: a file is not what it should be.
    """
    return fold(
        (rank, record)
        for rank in range(world_size)
        if (path := rank_file(folder, rank)).exists() and (record := _read(path, rank))
    )


def _read(path: Path, rank: int) -> RankRecord | None:
    record = read_rank(path)
    if record is not None and record.header.rank != rank:
        raise EvidenceError(f"the header is that of rank {record.header.rank}", where=str(path))
    return record


def fold(records: Iterable[tuple[int, RankRecord]]) -> Records:
    """Put the records of all ranks together, in the order in which they come."""
    folding = _Folding()
    for rank, record in records:
        folding.add(rank, record)
    return folding.done()


@dataclass
class _StepSum:
    """One step of the ranks so far."""

    holders: int = 0
    loss: float = math.nan
    least: float = math.inf
    most: float = -math.inf
    norm: float = math.nan
    away: float = 0.0
    tokens: int = 0
    rows: int = 0
    split: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak: int = 0
    ranks: int = 0

    def add(self, line: Step) -> None:
        """Everything but what ranks share."""
        if not self.ranks:
            self.norm = line.grad_norm
        self.away = _larger(self.away, abs(line.grad_norm - self.norm))
        if line.loss_here:
            self.loss = self.loss if self.holders else line.loss
            self.least = -_larger(-self.least, -line.loss)
            self.most = _larger(self.most, line.loss)
            self.holders += 1
        self.seconds = max(self.seconds, line.seconds.get("total", 0.0))
        self.peak = max(self.peak, line.peak_memory_bytes)
        self.ranks += 1

    def done(self, step: int) -> GlobalStep:
        return GlobalStep(
            step=step,
            loss=self.loss,
            grad_norm=self.norm,
            tokens=self.tokens,
            rows=f"{self.rows % _MODULUS:032x}",
            loss_spread=self.most - self.least if self.holders else math.nan,
            norm_spread=self.away / (abs(self.norm) or 1.0),
            split=", ".join(self.split),
            seconds=self.seconds,
            peak_memory_bytes=self.peak,
        )


def _larger(one: float, other: float) -> float:
    """The larger of the two; NaN, which compares with nothing, counts as larger."""
    return other if math.isnan(other) or other > one else one


class _Folding:
    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}
        self.sums: dict[int, _StepSum] = {}
        self.readers: dict[int, tuple[int, dict[int, int]]] = {}
        """By data-parallel rank its first rank, and a hash of what that saw at each step."""
        self.first: dict[tuple[Moment, int], tuple[int, Captured]] = {}
        self.apart = ""
        self.not_finite: list[tuple[int, int, str]] = []
        self.again: tuple[int, tuple[int, ...]] = (0, ())
        self.shapes: dict[Shape, tuple[int, int]] = {}

    def add(self, rank: int, record: RankRecord) -> None:
        self.ranks[rank] = Rank(
            header=record.header,
            steps=len(record.steps),
            states=record.states,
            communication=record.communication,
            compilation=record.compilation,
            closing=record.closing,
        )
        owner, seen = self.readers.setdefault(record.header.dp_rank, (rank, {}))
        for line in record.steps:
            total = self.sums.setdefault(line.step, _StepSum())
            total.add(line)
            what = hash((line.rows, line.tokens))
            if owner == rank:
                seen[line.step] = what
                total.tokens += line.tokens
                total.rows += int(line.rows, 16)
            elif seen.get(line.step) != what:
                total.split.append(f"ranks {owner} and {rank}")
            for shape in line.shapes:
                place = (line.step, rank)
                self.shapes[shape] = min(place, self.shapes.get(shape, place))
        self._look_for_odd_numbers(rank, record.steps)
        self._look_for_rows_again(rank, record.steps)
        self.apart = self.apart or self._differing(rank, record.captures)

    def _look_for_odd_numbers(self, rank: int, steps: Iterable[Step]) -> None:
        found = (
            (line.step, rank, name)
            for line in steps
            for name, value in (("loss", line.loss), ("grad_norm", line.grad_norm))
            if not math.isfinite(value)
        )
        # A generator, since a rank that diverged has many and only its first is asked for.
        self.not_finite += [one for one in [next(found, None)] if one]

    def _look_for_rows_again(self, rank: int, steps: Iterable[Step]) -> None:
        seen: set[str] = set()
        again = []
        for line in steps:
            if line.rows in seen:
                again.append(line.step)
            seen.add(line.rows)
        if len(again) > len(self.again[1]):
            self.again = (rank, tuple(again))

    def _differing(self, rank: int, lines: Iterable[Captured]) -> str:
        kept = {line.what: line for line in lines}
        for moment, line in kept.items():
            self.first.setdefault((moment, line.stage), (rank, line))
        lacks = set(get_args(Moment)) - kept.keys()
        if lacks:
            return f"rank {rank} kept no {min(lacks)}"
        for moment, line in kept.items():
            owner, ours = self.first[moment, line.stage]
            if ours.digests == line.digests:
                continue
            names = [n for n in ours.digests if ours.digests[n] != line.digests.get(n)]
            names += [n for n in line.digests if n not in ours.digests]
            return f"{moment} of {names[0]}: rank {rank} and rank {owner} differ"
        return ""

    def done(self) -> Records:
        count = len(self.ranks)
        return Records(
            ranks=self.ranks,
            steps=tuple(s.done(n) for n, s in sorted(self.sums.items()) if s.ranks == count),
            last_step=max(self.sums, default=None),
            captures=self._captures(),
            apart=self.apart,
            not_finite=min(self.not_finite, default=None),
            again=self.again,
            shapes=self.shapes,
        )

    def _captures(self) -> dict[Moment, tuple[Captured, ...]]:
        stages = next((r.header.degrees.pp for r in self.ranks.values()), 0)
        found: dict[Moment, tuple[Captured, ...]] = {}
        for moment in get_args(Moment):
            places = [(moment, stage) for stage in range(stages)]
            if places and all(place in self.first for place in places):
                found[moment] = tuple(self.first[place][1] for place in places)
        return found
