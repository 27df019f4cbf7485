"""What all ranks of a launch recorded, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trn_validate.ranks import Rank
from trn_validate.records import Captured, Header, Moment

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


def repeated(rows: Iterable[tuple[int, str]]) -> tuple[int, ...]:
    """Steps whose rows an earlier step had; ``rows`` are pairs of a step and its digest."""
    seen: set[str] = set()
    again = []
    for step, digest in rows:
        if digest in seen:
            again.append(step)
        seen.add(digest)
    return tuple(again)
