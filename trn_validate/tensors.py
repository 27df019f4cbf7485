"""Checks on what the ranks kept: gradients of step 1, and parameters before and after.

The gradient is the sensitive figure: under AdamW a gradient that is wrong by a constant
factor leaves the loss curve where it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trn_validate.captures import Capture, read_capture
from trn_validate.check import Basis, Check
from trn_validate.distances import Deviation, Measuring, Meter
from trn_validate.distances import deviations as deviations_of
from trn_validate.folded import Records
from trn_validate.parity import Tolerance

REPLICAS = "replicas agree"
_SHOWN = 3


@dataclass(frozen=True)
class Kept:
    """What one run kept; a moment is None where the ranks left nothing of it."""

    start: Capture | None
    gradient: Capture | None
    end: Capture | None
    split: str
    """Names ranks whose copies of a tensor differ; empty if none."""
    meter: Meter = field(default_factory=Measuring, compare=False)
    """How its tensors are held against a reference's."""


def kept(
    records: Records, folder: Path, *, accepted: bool = True, meter: Meter | None = None
) -> Kept:
    """What the ranks of a launch kept in ``folder``, and whether a verdict vouches for it."""
    return Kept(
        start=read_capture(records, folder, "start", accepted=accepted),
        gradient=read_capture(records, folder, "gradient", accepted=accepted),
        end=read_capture(records, folder, "end", accepted=accepted),
        split=records.apart,
        meter=meter or Measuring(),
    )


def tensor_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`tensor_checks` makes."""
    return tuple(
        f"{name}: {part}"
        for part in (
            "parameters compared",
            REPLICAS,
            "weights at the start",
            "gradient of step 1",
            "parameters after the last step",
        )
    )


def tensor_checks(name: str, reference: Kept, candidate: Kept, tolerance: Tolerance) -> list[Check]:
    """Hold gradients and parameters of a run against the reference's, name by name.

    Raises:
        EvidenceError: a file of tensors is missing or is not what its record says.
    """
    compared, _, weights, gradient, parameters = tensor_names(name)
    return [
        _matched(compared, reference, candidate),
        replicas_check(name, candidate),
        _weights(weights, reference, candidate),
        _far(
            gradient,
            slopes(reference, candidate),
            tolerance.basis("gradient_relative"),
            candidate.meter,
            (reference.gradient, candidate.gradient),
        ),
        _far(
            parameters,
            changes(reference, candidate),
            tolerance.basis("parameter_relative"),
            candidate.meter,
            (reference.end, candidate.end),
            of="change since the seed, ",
        ),
    ]


def slopes(reference: Kept, candidate: Kept) -> tuple[Deviation, ...]:
    """Distance of each gradient; nothing where a side kept none."""
    if reference.gradient is None or candidate.gradient is None:
        return ()
    return deviations_of(candidate.meter.apart(reference.gradient, candidate.gradient))


def changes(reference: Kept, candidate: Kept) -> tuple[Deviation, ...]:
    """Distance of each parameter after the last step; nothing where a side kept none.

    A candidate that kept what it started with, as a control does, is counted from there.
    """
    if reference.start is None or reference.end is None or candidate.end is None:
        return ()
    own = candidate.start if candidate.start is not None and candidate.start.held else None
    found = candidate.meter.apart(reference.end, candidate.end, reference.start, own)
    return deviations_of(found)


def largest(deviations: Sequence[Deviation]) -> float:
    """The largest relative distance; infinite where there is none, or one is no number."""
    values = [d.relative for d in deviations]
    if not values or any(math.isnan(value) for value in values):
        return math.inf
    return max(values)


def _matched(name: str, reference: Kept, candidate: Kept) -> Check:
    """Every parameter has a gradient and a value on both sides, and none is new."""
    odd: list[str] = []
    total = 0
    for what, ours, theirs in (
        ("gradient", reference.gradient, candidate.gradient),
        ("weights", reference.end, candidate.end),
    ):
        if ours is None or theirs is None:
            odd.append(f"no {what} were kept")
            continue
        wanted, found = ours.norms, theirs.norms
        total = len(wanted)
        odd += [f"{name} has no {what} in the reference" for name in ours.absent]
        odd += [f"{name} has no {what}" for name in wanted if name not in found]
        odd += [f"{name} is not in the reference" for name in found if name not in wanted]
    return Check(
        name=name,
        measured=len(odd) if total else max(1, len(odd)),
        comparator="==",
        limit=0,
        unit="unmatched",
        source="derived",
        detail=_some(odd)
        or f"{total} parameters, matched by name{_frozen(reference)}{_sketched(reference)}",
    )


def _frozen(reference: Kept) -> str:
    if reference.gradient is None or reference.end is None:
        return ""
    count = len(set(reference.end.norms) - set(reference.gradient.norms))
    return f", {count} of them frozen" if count else ""


def _sketched(reference: Kept) -> str:
    used = reference.gradient is not None and reference.gradient.sketched
    return ", by random sketches of each" if used else ""


def replicas_check(name: str, candidate: Kept) -> Check:
    """Ranks that share a tensor gathered the same bits, at every moment that was kept."""
    return Check(
        name=f"{name}: {REPLICAS}",
        measured=1 if candidate.split or candidate.end is None else 0,
        comparator="==",
        limit=0,
        unit="copies that differ",
        source="derived",
        detail=candidate.split,
    )


def _weights(name: str, reference: Kept, candidate: Kept) -> Check:
    """Both runs started from the same bits."""
    ours = reference.start.digests if reference.start else {}
    theirs = candidate.start.digests if candidate.start else {}
    odd = [n for n in ours if ours[n] != theirs.get(n)] + [n for n in theirs if n not in ours]
    return Check(
        name=name,
        measured=len(odd) if ours else 1,
        comparator="==",
        limit=0,
        unit="parameters that differ",
        source="derived",
        detail=_some(odd) or f"{len(ours)} parameters, bit by bit",
    )


def _far(
    name: str,
    deviations: Sequence[Deviation],
    basis: Basis,
    meter: Meter,
    sides: tuple[Capture | None, Capture | None],
    *,
    of: str = "",
) -> Check:
    worst = max(deviations, key=lambda d: d.relative, default=None)
    detail = f"largest in {worst.name}" if worst else "nothing was kept"
    outside = [d for d in deviations if not d.relative <= basis.limit]
    if outside:
        detail = f"over the limit: {_some([d.name for d in outside])}; "
        detail += of + kind(outside, deviations) + _block(outside[0], meter, sides)
    return Check(
        name=name,
        measured=largest(deviations),
        comparator="<=",
        limit=basis.limit,
        unit="relative L2",
        source="measured",
        detail=detail,
        basis=basis,
    )


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def _block(deviation: Deviation, meter: Meter, sides: tuple[Capture | None, Capture | None]) -> str:
    """Rows of the first parameter to which the difference is confined: one rank's shard."""
    reference, candidate = sides
    if reference is None or candidate is None or math.isinf(deviation.relative):
        return ""
    rows = meter.rows(reference, candidate, deviation.name)
    if rows is None or rows[1] - rows[0] + 1 > 0.75 * rows[2]:
        return ""
    return f"; in {deviation.name} only rows {rows[0]} to {rows[1]} of {rows[2]}: one rank's shard"


def kind(outside: Sequence[Deviation], deviations: Sequence[Deviation]) -> str:
    """What a fault looks like, from which parameters are off and by what."""
    if any(math.isnan(d.relative) for d in outside):
        return "not a finite number"
    if any(math.isinf(d.relative) for d in outside):
        return "missing or of another shape"
    if all(d.factor == 0.0 for d in outside):
        return "all zero"
    factors = [d.factor for d in outside]
    same = max(factors) - min(factors) <= 1e-2 * abs(factors[0])
    if same and all(d.rest <= 0.1 * d.relative for d in outside):
        scope = "every parameter" if len(outside) == len(deviations) else "these"
        return f"{scope}: a constant factor of {factors[0]:.4g}"
    if len(outside) == len(deviations):
        return "every parameter is off, by no common factor"
    if all("norm" in d.name for d in outside):
        return "only weights that are replicated under tp (norms)"
    layers = {found[0] if (found := re.findall(r"layers\.\d+", d.name)) else "" for d in outside}
    if len(layers) == 1 and "" not in layers:
        return f"only {layers.pop()}"
    return f"{len(outside)} of {len(deviations)} parameters"
