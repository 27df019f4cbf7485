"""The norms behind every comparison of tensors, kept so that it can be judged again without them.

A stage leaves them in its attempt's folder as ``distances.json``. Whoever has that file and the
records of the ranks can compute what its checks measured: the tensors themselves, which are
nearly all of a run's size, need not be there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field, ValidationError

from trn_validate.base import Real, Record
from trn_validate.errors import EvidenceError

if TYPE_CHECKING:
    from trn_validate.captures import Capture

NAME = "distances.json"
"""Name of the file in an attempt's folder."""

FLOOR = 1e-6
"""Least denominator of a parameter's distance, as a part of the norm over all parameters."""

Of = Literal["gradient", "change"]
"""Gradients of step 1, or changes of the parameters from the start to the last step."""

Rows = tuple[int, int, int]
"""First and last row that hold a difference, and the number of rows."""


@dataclass(frozen=True)
class Deviation:
    """How far one parameter's tensor is from the reference's."""

    name: str
    relative: float
    """L2 norm of the difference over the denominator; infinite where a side lacks it, NaN where
    one holds what is no finite number."""
    factor: float = math.nan
    """The constant that brings the reference's tensor closest to this one."""
    rest: float = math.inf
    """What is left of ``relative`` once that constant is taken out."""


class Apart(Record):
    """Two tensors of one name, before the denominator is known, which takes those of all names."""

    name: str
    reference: Real | None
    """L2 norm that the distance is relative to; None where the reference has no such tensor."""
    difference: Real = math.inf
    """L2 norm of the difference; infinite where there is none, NaN where a side holds what is no
    finite number."""
    factor: Real = math.nan
    rest: Real = math.inf
    """L2 norm of what is left once the reference is multiplied by ``factor``."""

    def relative_to(self, least: float) -> Deviation:
        """The deviation, its denominator floored at ``least``."""
        scale = max(self.reference, least) if self.reference is not None else 0.0
        if not scale or math.isinf(self.difference):
            return Deviation(self.name, math.inf)
        if math.isnan(self.difference):
            return Deviation(self.name, math.nan)
        return Deviation(self.name, self.difference / scale, self.factor, self.rest / scale)


def deviations(tensors: Sequence[Apart]) -> tuple[Deviation, ...]:
    """Relative distances: each over its own norm, floored at FLOOR of the norm of all together."""
    least = FLOOR * math.hypot(*(one.reference for one in tensors if one.reference is not None))
    return tuple(one.relative_to(least) for one in tensors)


class Comparison(Record):
    """Every tensor of one launch held against the same of another."""

    of: Of
    reference: str
    """``<stage>/<attempt>/<launch>`` of the run that was held against."""
    candidate: str
    tensors: tuple[Apart, ...]
    rows: dict[str, Rows | None] = Field(default_factory=dict)
    """By tensor where its difference lies, for the tensors that it was looked up for."""

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """What the checks judge: the relative distance of each tensor."""
        return deviations(self.tensors)


class Distances(Record):
    """All comparisons of one attempt, in the order in which they were made."""

    comparisons: tuple[Comparison, ...] = ()


def read_distances(path: Path) -> Distances:
    """Read the file of an attempt.

    Raises:
        EvidenceError: it is missing or is no such file.
    """
    try:
        return Distances.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise EvidenceError(
            f"not a file of distances ({what})",
            where=str(path),
            todo="Restore the file, or rerun the stage that made it.",
        ) from None


class Meter(Protocol):
    """Tells how far the tensors of two launches are apart."""

    def apart(
        self,
        reference: Capture,
        candidate: Capture,
        start: Capture | None = None,
        own: Capture | None = None,
    ) -> tuple[Apart, ...]:
        """Distance of every tensor, counted from those of ``start`` where it is given.

        The candidate's are counted from ``own``, where it started from others on purpose.

        Raises:
            EvidenceError: it cannot be told.
        """
        ...

    def rows(self, reference: Capture, candidate: Capture, name: str) -> Rows | None:
        """Where the difference of one tensor lies; None where that says nothing."""
        ...


class Measuring:
    """Measures on the tensors, and keeps what came out."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Of, str, str], Comparison] = {}

    @property
    def distances(self) -> Distances:
        """All that was measured."""
        return Distances(comparisons=tuple(self._kept.values()))

    def apart(
        self,
        reference: Capture,
        candidate: Capture,
        start: Capture | None = None,
        own: Capture | None = None,
    ) -> tuple[Apart, ...]:
        """See :meth:`Meter.apart`."""
        from trn_validate.deviations import measure

        found = measure(reference, candidate, start, own)
        kind: Of = "gradient" if start is None else "change"
        key = (kind, reference.launch, candidate.launch)
        self._kept[key] = Comparison(of=kind, reference=key[1], candidate=key[2], tensors=found)
        return found

    def rows(self, reference: Capture, candidate: Capture, name: str) -> Rows | None:
        """See :meth:`Meter.rows`."""
        from trn_validate.deviations import rows_that_differ

        found = rows_that_differ(reference, candidate, name)
        key = (kind_of(candidate), reference.launch, candidate.launch)
        if (before := self._kept.get(key)) is not None:
            rows = {**before.rows, name: found}
            self._kept[key] = before.model_copy(update={"rows": rows})
        return found


class Told:
    """Answers from what was measured before, for whoever has no tensors."""

    def __init__(self, distances: Distances) -> None:
        self._known = {(c.of, c.reference, c.candidate): c for c in distances.comparisons}

    def apart(
        self,
        reference: Capture,
        candidate: Capture,
        start: Capture | None = None,
        own: Capture | None = None,
    ) -> tuple[Apart, ...]:
        """See :meth:`Meter.apart`."""
        return self._find("gradient" if start is None else "change", reference, candidate).tensors

    def rows(self, reference: Capture, candidate: Capture, name: str) -> Rows | None:
        """See :meth:`Meter.rows`."""
        return self._find(kind_of(candidate), reference, candidate).rows.get(name)

    def _find(self, kind: Of, reference: Capture, candidate: Capture) -> Comparison:
        try:
            return self._known[kind, reference.launch, candidate.launch]
        except KeyError:
            pair = f"{candidate.launch} against {reference.launch}"
            raise EvidenceError(f"no distances of {pair} ({kind})", where=NAME) from None


def kind_of(candidate: Capture) -> Of:
    """Which comparison a capture belongs to: that of the gradients or that of the changes."""
    return "gradient" if candidate.records[0].what == "gradient" else "change"
