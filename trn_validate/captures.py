"""Gradients and parameters that the ranks kept, and the distance between two runs of them.

What a file holds is the whole tensor or, for a model too large for that, its sketch, which is
linear: the same comparison serves both. A name that one side lacks is never skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from trn_validate.errors import EvidenceError, MeasurementError
from trn_validate.ranks import RankRecord
from trn_validate.records import Captured

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FLOOR = 1e-6
"""Least denominator of a parameter's distance, as a part of the norm over all parameters."""

Moment = Literal["start", "gradient", "end"]


@dataclass(frozen=True)
class Capture:
    """One moment of a run: the records of every stage's first rank, and where their files are."""

    folder: Path
    records: tuple[Captured, ...]
    """One per pipeline stage, from the first to the last."""
    accepted: bool = True
    """Whether a verdict vouches for the files; if not, it is the launch that did not leave them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every parameter that was kept, in forward order."""
        return tuple(name for record in self.records for name in record.norms)

    @property
    def norms(self) -> dict[str, float]:
        """L2 norm of each whole tensor."""
        return {name: norm for record in self.records for name, norm in record.norms.items()}

    @property
    def digests(self) -> dict[str, str]:
        """sha256 of each tensor."""
        return {name: d for record in self.records for name, d in record.digests.items()}

    @property
    def absent(self) -> tuple[str, ...]:
        """Parameters that had no gradient."""
        return tuple(name for record in self.records for name in record.absent)

    @property
    def sketched(self) -> bool:
        """Whether sketches stand for the tensors."""
        return any(record.mode == "sketch" for record in self.records)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Each tensor as float64, one at a time, in forward order.

        Raises:
            EvidenceError: a file that is missing or is not what the record says.
            MeasurementError: the same, of a launch that no verdict has accepted yet.
        """
        for record in self.records:
            try:
                yield from _tensors(self.folder, record)
            except EvidenceError as error:
                if self.accepted:
                    raise
                raise MeasurementError(error.what, where=error.where) from error


def read_capture(
    records: Mapping[int, RankRecord], folder: Path, moment: Moment, *, accepted: bool = True
) -> Capture | None:
    """What the ranks kept of that moment; None where a stage kept nothing."""
    lines = [
        line
        for _, record in sorted(records.items())
        for line in record.captures
        if line.what == moment
    ]
    first: dict[int, Captured] = {}
    for line in lines:
        first.setdefault(line.stage, line)
    stages = next((r.header.degrees.pp for r in records.values()), 0)
    if sorted(first) != list(range(stages)) or not stages:
        return None
    return Capture(folder, tuple(first[stage] for stage in sorted(first)), accepted)


def disagreement(records: Mapping[int, RankRecord]) -> str:
    """Names a rank, and the first tensor, that differs from what its stage's first rank gathered.

    Every rank gathers each tensor over its own group, so replicas that drifted apart show here
    and nowhere else: the file is that of the first rank. A rank that kept nothing of a moment
    has shown nothing, and is named too.
    """
    first: dict[tuple[int, str], tuple[int, Captured]] = {}
    for rank, record in sorted(records.items()):
        lacks = set(get_args(Moment)) - {line.what for line in record.captures}
        if lacks:
            return f"rank {rank} kept no {min(lacks)}"
        for line in record.captures:
            owner, ours = first.setdefault((line.stage, line.what), (rank, line))
            if ours.digests == line.digests:
                continue
            names = [n for n in ours.digests if ours.digests[n] != line.digests.get(n)]
            names += [n for n in line.digests if n not in ours.digests]
            return f"{line.what} of {names[0]}: rank {rank} and rank {owner} differ"
    return ""


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


def gradient_deviations(reference: Capture, candidate: Capture) -> tuple[Deviation, ...]:
    """Relative L2 distance of every gradient, in the reference's forward order.

    The denominator is the norm of the reference's gradient, floored at FLOOR of the total.
    """
    norms = reference.norms
    least = FLOOR * math.hypot(*norms.values())
    scale = {name: max(norm, least) for name, norm in norms.items()}
    return _deviations(reference, candidate, scale)


def parameter_deviations(
    start: Capture, reference: Capture, candidate: Capture
) -> tuple[Deviation, ...]:
    """Relative L2 distance of every parameter after the last step.

    The denominator is the norm of the change since ``start`` in the reference, floored at
    FLOOR of the change of all: what training did, not what the weights are.
    """
    import numpy as np

    begun = dict(start.tensors())
    change = {n: float(np.linalg.norm(t - begun[n])) for n, t in reference.tensors() if n in begun}
    least = FLOOR * math.hypot(*change.values())
    scale = {name: max(norm, least) for name, norm in change.items()}
    # Of the changes, since a fault in the updates is no factor of the weights.
    return _deviations(reference, candidate, scale, begun)


def _deviations(
    reference: Capture,
    candidate: Capture,
    scale: Mapping[str, float],
    origin: Mapping[str, Array] | None = None,
) -> tuple[Deviation, ...]:
    theirs = dict(candidate.tensors())
    found = []
    for name, ours in reference.tensors():
        value = theirs.pop(name, None)
        if value is None or value.shape != ours.shape or not scale.get(name):
            found.append(Deviation(name, math.inf))
        else:
            zero = origin[name] if origin else 0.0
            found.append(_deviation(name, ours - zero, value - zero, scale[name]))
    return (*found, *(Deviation(name, math.inf) for name in theirs))


def _deviation(name: str, reference: Array, value: Array, scale: float) -> Deviation:
    import numpy as np

    if not (np.isfinite(reference).all() and np.isfinite(value).all()):
        return Deviation(name, math.nan)
    square = float(np.vdot(reference, reference))
    factor = float(np.vdot(reference, value)) / square if square else math.nan
    return Deviation(
        name,
        relative=float(np.linalg.norm(value - reference)) / scale,
        factor=factor,
        rest=float(np.linalg.norm(value - factor * reference)) / scale,
    )


def rows_that_differ(
    reference: Capture, candidate: Capture, name: str
) -> tuple[int, int, int] | None:
    """First and last row that hold the difference in one parameter, and the number of rows.

    All but a millionth of its square lies between them. None for a vector, or where sketches
    stand for the tensors.
    """
    import numpy as np

    if reference.sketched or candidate.sketched:
        return None
    sides = [dict(side.tensors()).get(name) for side in (reference, candidate)]
    ours, theirs = sides
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.ndim < 2:
        return None
    squares = np.square(theirs - ours).reshape(ours.shape[0], -1).sum(axis=1)
    held = np.flatnonzero(squares > 1e-6 * squares.sum())
    return (int(held[0]), int(held[-1]), ours.shape[0]) if held.size else None


def _tensors(folder: Path, record: Captured) -> Iterator[tuple[str, Array]]:
    from safetensors import SafetensorError, safe_open

    path = folder / (record.file or "")
    try:
        with safe_open(path, framework="np") as file:
            if set(file.keys()) != set(record.norms):
                raise EvidenceError(
                    "the file holds other tensors than its record names",
                    where=str(path),
                    todo="Rerun the stage that wrote it.",
                )
            for name in record.norms:
                yield name, file.get_tensor(name).astype("float64")
    except (SafetensorError, OSError) as error:
        raise EvidenceError(
            f"no file of tensors ({error})", where=str(path), todo="Rerun the stage that wrote it."
        ) from None
