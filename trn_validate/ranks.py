"""Reading what each rank wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trn_validate.base import Record, median
from trn_validate.errors import EvidenceError
from trn_validate.records import (
    Captured,
    Closing,
    Communication,
    Compilation,
    Header,
    Kernels,
    Line,
    Saved,
    State,
    Step,
    Written,
    rank_file,
)

_Kind = TypeVar("_Kind", bound=Record)
_LINE: TypeAdapter[Written] = TypeAdapter(Line, config=ConfigDict(defer_build=True))


@dataclass(frozen=True)
class Rank:
    """One rank, without its steps and its digests of tensors."""

    header: Header
    taken: int
    """Steps that it recorded."""
    peak_memory_bytes: int = 0
    step_seconds: float = 0.0
    """Median of its steps after the first, which compiles."""
    states: tuple[State, ...] = ()
    saved: tuple[Saved, ...] = ()
    communication: Communication | None = None
    compilation: Compilation | None = None
    kernels: Kernels | None = None
    closing: Closing | None = None

    @property
    def complete(self) -> bool:
        """Whether the rank came to its last line with every step that it counted."""
        return self.closing is not None and self.closing.steps == self.taken

    def state(self, at: Literal["start", "end"], step: int) -> State | None:
        """The state recorded at that point, or None."""
        return next((s for s in self.states if s.at == at and s.step == step), None)


@dataclass(frozen=True)
class RankRecord:
    """All lines of one rank."""

    rank: Rank
    steps: tuple[Step, ...]
    captures: tuple[Captured, ...]

    @classmethod
    def of(cls, lines: Sequence[Record]) -> RankRecord:
        """The lines of a rank, of which one is its header, by their kind."""
        (header,) = _of(Header, lines)
        steps = _of(Step, lines)
        after = [step.seconds.get("total", 0.0) for step in steps[1:]]
        rank = Rank(
            header=header,
            taken=len(steps),
            peak_memory_bytes=max((step.peak_memory_bytes for step in steps), default=0),
            step_seconds=median(after) if after else 0.0,
            states=_of(State, lines),
            saved=_of(Saved, lines),
            communication=next(iter(_of(Communication, lines)), None),
            compilation=next(iter(_of(Compilation, lines)), None),
            kernels=next(iter(_of(Kernels, lines)), None),
            closing=next(iter(_of(Closing, lines)), None),
        )
        return cls(rank, steps, _of(Captured, lines))


def read_rank(path: Path) -> RankRecord | None:
    """Read one rank's lines; None where not even the header is whole.

    A last line that was cut off by a kill is ignored: it is not yet a record.

    Raises:
        EvidenceError: a whole line that is no record, or not one header and that first.
    """
    lines: list[Written] = []
    for number, line in _lines(path):
        if isinstance(line, Header) == bool(lines):
            what = "a second header" if lines else "the first record is not a header"
            raise EvidenceError(what, where=f"{path}:{number}")
        lines.append(line)
    return RankRecord.of(lines) if lines else None


def read_each(folder: Path, world_size: int) -> Iterator[tuple[int, RankRecord]]:
    """Read the ranks that left a header, one after the other.

    Raises:
        EvidenceError: a file is not what it should be, or is that of another rank.
    """
    for rank in range(world_size):
        path = rank_file(folder, rank)
        record = read_rank(path) if path.exists() else None
        if record is None:
            continue
        if record.rank.header.rank != rank:
            what = f"the header is that of rank {record.rank.header.rank}"
            raise EvidenceError(what, where=str(path))
        yield rank, record


def _of(kind: type[_Kind], lines: Sequence[Record]) -> tuple[_Kind, ...]:
    return tuple(line for line in lines if isinstance(line, kind))


def _lines(path: Path) -> Iterator[tuple[int, Written]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"cannot read the rank record ({error})", where=str(path)) from None
    # Not splitlines(), which also splits at separators that a text inside a record may hold.
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            yield number, _LINE.validate_json(line)
        except ValidationError as error:
            raise EvidenceError(
                f"not a record ({error.errors()[0]['msg']})",
                where=f"{path}:{number}",
                todo="The file was altered or written by another version; rerun the stage.",
            ) from None
