"""How far two runs are apart, parameter by parameter.

A sketch is linear, so the same comparison serves it and the whole tensor. A name that one side
lacks is never skipped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trn_validate.captures import Capture
from trn_validate.distances import FLOOR, Apart, Deviation, Rows, deviations

__all__ = [
    "FLOOR",
    "Deviation",
    "gradient_deviations",
    "measure",
    "parameter_deviations",
    "rows_that_differ",
]

if TYPE_CHECKING:
    from trn_validate.captures import Array


def gradient_deviations(reference: Capture, candidate: Capture) -> tuple[Deviation, ...]:
    """Relative L2 distance of every gradient, in the reference's forward order.

    The denominator is the norm of the reference's gradient, floored at FLOOR of the total.
    """
    return deviations(measure(reference, candidate))


def parameter_deviations(
    start: Capture, reference: Capture, candidate: Capture, own: Capture | None = None
) -> tuple[Deviation, ...]:
    """Relative L2 distance of every parameter after the last step.

    The denominator is the norm of the change since ``start`` in the reference, floored at
    FLOOR of the change of all: what training did, not what the weights are. ``own`` is as in
    :func:`measure`.
    """
    return deviations(measure(reference, candidate, start, own))


def measure(
    reference: Capture,
    candidate: Capture,
    start: Capture | None = None,
    own: Capture | None = None,
) -> tuple[Apart, ...]:
    """How far every tensor is from the reference's, in its forward order; what is new comes last.

    With ``start`` the changes since then, since a fault in them is no factor of the weights.

    Args:
        own: what the candidate started with, where it was moved on purpose. Its change is then
            counted from there, so that the distance is what training made of the move, without
            the move: in bfloat16 that alone is several times the change of a few steps.

    Raises:
        EvidenceError: a file of tensors is missing or is not what its record says.
    """
    norms = reference.norms
    found = []
    ours, theirs = reference.reader(), candidate.reader()
    begun = _nothing if start is None else start.reader()
    moved = begun if own is None else own.reader()
    for name in norms:
        norm = norms[name] if start is None else None
        zeros = (begun(name), moved(name))
        found.append(_apart(name, ours(name), theirs(name), zeros, norm))
    extra = (name for name in candidate.names if name not in norms)
    return (*found, *(Apart(name=name, reference=None) for name in extra))


def _nothing(name: str) -> float:
    """Where a gradient is counted from."""
    return 0.0


def _apart(
    name: str,
    reference: Array | None,
    value: Array | None,
    zeros: tuple[Array | float | None, Array | float | None],
    known: float | None,
) -> Apart:
    """Two tensors, each counted from its zero; ``known`` is the first one's norm, if it is."""
    import numpy as np

    zero, moved = zeros
    if reference is None or zero is None:
        return Apart(name=name, reference=None)
    ours = reference - zero
    norm = float(np.linalg.norm(ours)) if known is None else known
    if value is None or moved is None or value.shape != reference.shape:
        return Apart(name=name, reference=norm)
    theirs = value - moved
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return Apart(name=name, reference=norm, difference=math.nan)
    square = float(np.vdot(ours, ours))
    factor = float(np.vdot(ours, theirs)) / square if square else math.nan
    return Apart(
        name=name,
        reference=norm,
        difference=float(np.linalg.norm(theirs - ours)),
        factor=factor,
        rest=float(np.linalg.norm(theirs - factor * ours)),
    )


def rows_that_differ(reference: Capture, candidate: Capture, name: str) -> Rows | None:
    """First and last row that hold the difference in one parameter, and the number of rows.

    All but a millionth of its square lies between them. None for a vector, or where sketches
    stand for the tensors.
    """
    import numpy as np

    if reference.sketched or candidate.sketched:
        return None
    ours, theirs = reference.reader()(name), candidate.reader()(name)
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.ndim < 2:
        return None
    squares = np.square(theirs - ours).reshape(ours.shape[0], -1).sum(axis=1)
    held = np.flatnonzero(squares > 1e-6 * squares.sum())
    return (int(held[0]), int(held[-1]), ours.shape[0]) if held.size else None
