"""Whether two runs of the same training are the same training.

A distance is taken at every step and its largest value is held against the limit, so that a
fault which shows once and heals is seen. A step that one side lacks is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trn_validate.check import Check
from trn_validate.judging import GlobalStep


def parity_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`parity_checks` makes."""
    return tuple(
        f"{name}: {part}"
        for part in (
            "steps compared",
            "steps with other tokens",
            "steps with other rows",
            "loss against the reference",
            "grad norm against the reference",
        )
    )


def parity_checks(
    name: str,
    reference: Sequence[GlobalStep],
    candidate: Sequence[GlobalStep],
    *,
    steps: int,
    loss_absolute: float,
    grad_norm_relative: float,
) -> list[Check]:
    """Compare two runs step by step.

    Args:
        steps: how many steps both have to have.
        loss_absolute: limit on the distance of the loss, in nats, at every step.
        grad_norm_relative: limit on the relative distance of the gradient norm.
    """
    ours = {s.step: s for s in reference}
    pairs = [(ours[s.step], s) for s in candidate if s.step in ours]
    tokens = [b.step for a, b in pairs if a.tokens != b.tokens]
    rows = [b.step for a, b in pairs if a.rows != b.rows]
    loss = [(abs(a.loss - b.loss), b.step) for a, b in pairs]
    norm = [(_relative(a.grad_norm, b.grad_norm), b.step) for a, b in pairs]
    count, other_tokens, other_rows, loss_name, norm_name = parity_names(name)
    return [
        Check(name=count, measured=len(pairs), comparator="==", limit=steps, source="derived"),
        _none(other_tokens, tokens, len(pairs)),
        _none(other_rows, rows, len(pairs)),
        _within(loss_name, loss, loss_absolute, unit="nats"),
        _within(norm_name, norm, grad_norm_relative, unit="relative"),
    ]


def _relative(reference: float, value: float) -> float:
    return abs(value - reference) / abs(reference) if reference else math.inf


def _none(name: str, steps: list[int], compared: int) -> Check:
    return Check(
        name=name,
        # With nothing compared, nothing was found equal.
        measured=len(steps) if compared else 1,
        comparator="==",
        limit=0,
        source="derived",
        detail=f"first at step {steps[0]}" if steps else f"{compared} steps compared",
    )


def _within(name: str, found: list[tuple[float, int]], limit: float, *, unit: str) -> Check:
    # NaN orders with nothing, so it has to be looked for before the largest is taken.
    bad = next(((v, s) for v, s in found if math.isnan(v)), None)
    worst, step = bad or max(found, default=(math.inf, 0))
    outside = next((s for v, s in found if not v <= limit), None)
    detail = f"largest at step {step}"
    if outside is not None:
        detail += f", first over the limit at step {outside}"
    return Check(
        name=name,
        measured=worst,
        comparator="<=",
        limit=limit,
        unit=unit,
        source="config",
        detail=detail,
    )
