"""How far two runs are apart, parameter by parameter.

A sketch is linear, so the same comparison serves it and the whole tensor. A name that one side
lacks is never skipped.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trn_validate.captures import Capture

if TYPE_CHECKING:
    from trn_validate.captures import Array

FLOOR = 1e-6
"""Least denominator of a parameter's distance, as a part of the norm over all parameters."""


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
    return _deviations(reference, candidate)


def parameter_deviations(
    start: Capture, reference: Capture, candidate: Capture, own: Capture | None = None
) -> tuple[Deviation, ...]:
    """Relative L2 distance of every parameter after the last step.

    The denominator is the norm of the change since ``start`` in the reference, floored at
    FLOOR of the change of all: what training did, not what the weights are.

    Args:
        own: what the candidate started with, where it was moved on purpose. Its change is then
            counted from there, so that the distance is what training made of the move, without
            the move: in bfloat16 that alone is several times the change of a few steps.
    """
    return _deviations(reference, candidate, start, own)


@dataclass(frozen=True)
class _Apart:
    """Two tensors of one name, before the denominator is known, which takes those of all names."""

    name: str
    own: float | None
    """Norm that the distance will be relative to; None where the reference has none."""
    distance: float = math.inf
    """NaN where a side holds what is no finite number."""
    factor: float = math.nan
    rest: float = math.inf

    def relative_to(self, least: float) -> Deviation:
        """The deviation, its denominator floored at ``least``."""
        scale = max(self.own, least) if self.own is not None else 0.0
        if not scale or math.isinf(self.distance):
            return Deviation(self.name, math.inf)
        if math.isnan(self.distance):
            return Deviation(self.name, math.nan)
        return Deviation(self.name, self.distance / scale, self.factor, self.rest / scale)


def _deviations(
    reference: Capture,
    candidate: Capture,
    start: Capture | None = None,
    own: Capture | None = None,
) -> tuple[Deviation, ...]:
    """With ``start`` the changes since then, since a fault in them is no factor of the weights."""
    norms = reference.norms
    found = []
    with (
        reference.reading() as ours,
        candidate.reading() as theirs,
        nullcontext(_nothing) if start is None else start.reading() as begun,
        nullcontext(begun) if own is None else own.reading() as moved,
    ):
        for name in norms:
            norm = norms[name] if start is None else None
            zeros = (begun(name), moved(name))
            found.append(_apart(name, ours(name), theirs(name), zeros, norm))
    least = FLOOR * math.hypot(*(one.own for one in found if one.own is not None))
    extra = (name for name in candidate.names if name not in norms)
    return (
        *(one.relative_to(least) for one in found),
        *(Deviation(name, math.inf) for name in extra),
    )


def _nothing(name: str) -> float:
    """Where a gradient is counted from."""
    return 0.0


def _apart(
    name: str,
    reference: Array | None,
    value: Array | None,
    zeros: tuple[Array | float | None, Array | float | None],
    known: float | None,
) -> _Apart:
    """Two tensors, each counted from its zero; ``known`` is the first one's norm, if it is."""
    import numpy as np

    zero, moved = zeros
    if reference is None or zero is None:
        return _Apart(name, None)
    ours = reference - zero
    norm = float(np.linalg.norm(ours)) if known is None else known
    if value is None or moved is None or value.shape != reference.shape:
        return _Apart(name, norm)
    theirs = value - moved
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return _Apart(name, norm, math.nan)
    square = float(np.vdot(ours, ours))
    factor = float(np.vdot(ours, theirs)) / square if square else math.nan
    return _Apart(
        name,
        norm,
        distance=float(np.linalg.norm(theirs - ours)),
        factor=factor,
        rest=float(np.linalg.norm(theirs - factor * ours)),
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
    with reference.reading() as read, candidate.reading() as read_other:
        ours, theirs = read(name), read_other(name)
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.ndim < 2:
        return None
    squares = np.square(theirs - ours).reshape(ours.shape[0], -1).sum(axis=1)
    held = np.flatnonzero(squares > 1e-6 * squares.sum())
    return (int(held[0]), int(held[-1]), ours.shape[0]) if held.size else None
