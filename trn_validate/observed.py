"""What a stage saw besides what its ranks wrote, kept so that it can be judged again elsewhere.

A stage looks at the host, at installed packages and at folders that are too large to be kept. It
does so through an :class:`Observer`, which leaves every answer, and how every launch ended, in
the attempt's folder as ``observed.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from trn_validate.base import Record, absent
from trn_validate.errors import EvidenceError
from trn_validate.launch import Cause, LaunchResult

NAME = "observed.json"
"""Name of the file in an attempt's folder."""

JUDGED = "as judged on the host"
"""How the name of an answer begins that is no look at the host but what a check made of one."""

_TODO = "Restore the file, or rerun the stage that made it."

T = TypeVar("T")


class Ended(Record):
    """How a launch ended; every field is as in :class:`trn_validate.launch.LaunchResult`."""

    name: str
    argv: tuple[str, ...]
    cause: str
    exit_status: int | None
    seconds: float
    what: str
    rank: int | None
    node: Annotated[str | None, Field(exclude_if=absent)] = None
    log: str
    """Relative to the attempt's folder; empty where there is none."""
    excerpt: str

    @classmethod
    def of(cls, result: LaunchResult, private: Path) -> Ended:
        """The result of a launch of the attempt whose private folder that is."""
        log = result.log
        inside = log is not None and log.is_relative_to(private)
        return cls(
            name=result.name,
            argv=result.argv,
            cause=result.cause.value,
            exit_status=result.exit_status,
            seconds=result.seconds,
            what=result.what,
            rank=result.rank,
            node=result.node,
            log=str(log.relative_to(private)) if log is not None and inside else "",
            excerpt=result.excerpt,
        )

    def result(self, private: Path) -> LaunchResult:
        """What the launcher said, as of an attempt whose private folder that is.

        Raises:
            EvidenceError: there is no such cause.
        """
        cause = next((one for one in Cause if one.value == self.cause), None)
        if cause is None:
            raise EvidenceError(f"{self.cause!r} is no cause", where=NAME, todo=_TODO)
        return LaunchResult(
            name=self.name,
            argv=self.argv,
            cause=cause,
            exit_status=self.exit_status,
            seconds=self.seconds,
            what=self.what,
            rank=self.rank,
            node=self.node,
            log=private / self.log if self.log else None,
            excerpt=self.excerpt,
        )


class Observed(Record):
    """All that an attempt saw."""

    launches: tuple[Ended, ...] = ()
    """In the order in which they were asked for."""
    seen: dict[str, Any] = Field(default_factory=dict)
    """Answers by the name under which the stage asked."""


def read_observed(path: Path) -> Observed:
    """Read the file of an attempt.

    Raises:
        EvidenceError: it is missing or is no such file.
    """
    try:
        return Observed.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise EvidenceError(
            f"not a file of observations ({what})", where=str(path), todo=_TODO
        ) from None


class Observer(Protocol):
    """Looks at something for a stage."""

    def see(self, name: str, kind: type[T], look: Callable[[], T]) -> T:
        """What ``look`` gives, a value of ``kind``, which has to have a place in JSON.

        Raises:
            EvidenceError: only an earlier answer may be given, and there is none.
        """
        ...


class Looking:
    """Looks, and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def see(self, name: str, kind: type[T], look: Callable[[], T]) -> T:
        """See :meth:`Observer.see`."""
        found = look()
        if name in self.seen:
            raise ValueError(f"{name} was looked at before")
        # Without what is computed, which no model takes back.
        self.seen[name] = TypeAdapter(kind).dump_python(found, mode="json", round_trip=True)
        return found


class Remembering:
    """Gives the answers that were kept, and looks at nothing."""

    def __init__(self, observed: Observed) -> None:
        self._seen = observed.seen

    def see(self, name: str, kind: type[T], look: Callable[[], T]) -> T:
        """See :meth:`Observer.see`."""
        if name not in self._seen:
            raise EvidenceError(f"no answer to {name!r}", where=NAME, todo=_TODO)
        try:
            # As JSON, in which a strict model takes a list for a tuple.
            return TypeAdapter(kind).validate_json(json.dumps(self._seen[name]))
        except ValidationError as error:
            what = f"the answer to {name!r} is none ({error.errors()[0]['msg']})"
            raise EvidenceError(what, where=NAME, todo=_TODO) from None
