"""Putting the records of all ranks together, one rank at a time.

What grows with ranks x steps or ranks x parameters is folded as it is read and then let go, so
that the records of a thousand ranks need little more memory than those of four.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from trn_validate.base import larger
from trn_validate.folded import GlobalStep, Records, Shape, repeated
from trn_validate.ranks import Rank, RankRecord, read_each
from trn_validate.records import Captured, Moment, Step

_MODULUS = 2**128


def read_ranks(folder: Path, world_size: int) -> Records:
    """Records of every rank that left a header.

    Raises:
        EvidenceError: a file is not what it should be, or is that of another rank.
    """
    return fold(read_each(folder, world_size))


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
        self.away = larger(self.away, abs(line.grad_norm - self.norm))
        if line.loss_here:
            self.loss = self.loss if self.holders else line.loss
            self.least = -larger(-self.least, -line.loss)
            self.most = larger(self.most, line.loss)
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


class _Folding:
    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}
        self.sums: dict[int, _StepSum] = {}
        self.readers: dict[int, tuple[int, dict[int, int]]] = {}
        """By data-parallel rank its first rank, and a hash of what that saw at each step."""
        self.first: dict[tuple[Moment, int], tuple[int, Captured]] = {}
        self.apart = ""
        self.not_finite: tuple[int, int, str] | None = None
        self.again: tuple[int, tuple[int, ...]] = (0, ())
        self.shapes: dict[Shape, tuple[int, int]] = {}

    def add(self, rank: int, record: RankRecord) -> None:
        self.ranks[rank] = record.rank
        owner, seen = self.readers.setdefault(record.rank.header.dp_rank, (rank, {}))
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
        odd = _first_odd(rank, record.steps)
        if odd is not None and (self.not_finite is None or odd < self.not_finite):
            self.not_finite = odd
        again = repeated((line.step, line.rows) for line in record.steps)
        if len(again) > len(self.again[1]):
            self.again = (rank, again)
        for kept in record.captures:
            self.first.setdefault((kept.what, kept.stage), (rank, kept))
        self.apart = self.apart or self._differing(rank, record.captures)

    def _differing(self, rank: int, lines: Sequence[Captured]) -> str:
        lacks = set(get_args(Moment)) - {line.what for line in lines}
        if lacks:
            return f"rank {rank} kept no {min(lacks)}"
        for line in lines:
            owner, ours = self.first[line.what, line.stage]
            if ours.digests == line.digests:
                continue
            names = [n for n in ours.digests if ours.digests[n] != line.digests.get(n)]
            names += [n for n in line.digests if n not in ours.digests]
            return f"{line.what} of {names[0]}: rank {rank} and rank {owner} differ"
        return ""

    def done(self) -> Records:
        count = len(self.ranks)
        return Records(
            ranks=self.ranks,
            steps=tuple(s.done(n) for n, s in sorted(self.sums.items()) if s.ranks == count),
            last_step=max(self.sums, default=None),
            captures=self._captures(),
            apart=self.apart,
            not_finite=self.not_finite,
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


def _first_odd(rank: int, steps: Iterable[Step]) -> tuple[int, int, str] | None:
    odd = (
        (line.step, rank, name)
        for line in steps
        for name, value in (("loss", line.loss), ("grad_norm", line.grad_norm))
        if not math.isfinite(value)
    )
    return next(odd, None)
