"""Reading what one rank wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from trn_validate.base import Record
from trn_validate.errors import EvidenceError
from trn_validate.records import (
    Captured,
    Closing,
    Communication,
    Compilation,
    Header,
    Line,
    State,
    Step,
    Written,
)

_Kind = TypeVar("_Kind", bound=Record)
_LINE: TypeAdapter[Written] = TypeAdapter(Line)


class RankRecord(BaseModel):
    """All lines of one rank."""

    header: Header
    steps: tuple[Step, ...]
    states: tuple[State, ...]
    captures: tuple[Captured, ...] = ()
    communication: Communication | None = None
    compilation: Compilation | None = None
    closing: Closing | None

    @property
    def complete(self) -> bool:
        """Whether the rank came to its last line with every step it counted."""
        return self.closing is not None and self.closing.steps == len(self.steps)


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
    if not lines:
        return None
    (header,) = _of(Header, lines)
    return RankRecord(
        header=header,
        steps=_of(Step, lines),
        states=_of(State, lines),
        captures=_of(Captured, lines),
        communication=next(iter(_of(Communication, lines)), None),
        compilation=next(iter(_of(Compilation, lines)), None),
        closing=next(iter(_of(Closing, lines)), None),
    )


def _of(kind: type[_Kind], lines: list[Written]) -> tuple[_Kind, ...]:
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
