"""Whether two runs of the same training are the same training.

A distance is taken at every step and its largest value is held against the limit, so that a
fault which shows once and heals is seen. A step that one side lacks is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trn_validate.base import larger
from trn_validate.check import Basis, Check, none_found
from trn_validate.folded import GlobalStep
from trn_validate.limits import Bound, Deviations


@dataclass(frozen=True)
class Noise:
    """How far a run that differs from the reference by rounding alone is from it."""

    loss_absolute: float
    grad_norm_relative: float
    gradient_relative: float
    parameter_relative: float

    def and_also(self, other: Noise) -> Noise:
        """The larger of the two in each figure; NaN counts as larger."""
        sides = ((getattr(self, f), getattr(other, f)) for f in self.__dataclass_fields__)
        return Noise(*(larger(*pair) for pair in sides))


@dataclass(frozen=True)
class Tolerance:
    """What decides between two layouts: the plan's bounds, and the noise that was measured."""

    bounds: Deviations
    factor: float
    noise: Noise

    def basis(self, figure: str) -> Basis:
        """Floor, factor, control and ceiling of one figure of :class:`Noise`."""
        bound: Bound = getattr(self.bounds, figure)
        return Basis(
            floor=bound.floor,
            factor=self.factor,
            control=getattr(self.noise, figure),
            ceiling=bound.ceiling,
        )


@dataclass(frozen=True)
class Limit:
    """A limit, and the measurement that it follows from where there is one."""

    value: float
    basis: Basis | None = None

    @classmethod
    def of(cls, basis: Basis) -> Limit:
        """The limit that follows from a control run."""
        return cls(basis.limit, basis)


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
    loss: Limit,
    grad_norm: Limit,
) -> list[Check]:
    """Compare two runs step by step.

    Args:
        steps: how many steps both have to have.
        loss: on the distance of the loss, in nats, at every step.
        grad_norm: on the relative distance of the gradient norm.
    """
    ours = {s.step: s for s in reference}
    pairs = [(ours[s.step], s) for s in candidate if s.step in ours]
    tokens = [b.step for a, b in pairs if a.tokens != b.tokens]
    rows = [b.step for a, b in pairs if a.rows != b.rows]
    count, other_tokens, other_rows, loss_name, norm_name = parity_names(name)
    return [
        Check(name=count, measured=len(pairs), comparator="==", limit=steps, source="derived"),
        _none(other_tokens, tokens, len(pairs)),
        _none(other_rows, rows, len(pairs)),
        _within(loss_name, loss_distances(reference, candidate), loss, unit="nats"),
        _within(norm_name, norm_distances(reference, candidate), grad_norm, unit="relative"),
    ]


def loss_distances(
    reference: Sequence[GlobalStep], candidate: Sequence[GlobalStep]
) -> list[tuple[float, int]]:
    """Absolute distance of the loss, in nats, and the step, for each step that both have."""
    ours = {s.step: s.loss for s in reference}
    return [(abs(s.loss - ours[s.step]), s.step) for s in candidate if s.step in ours]


def norm_distances(
    reference: Sequence[GlobalStep], candidate: Sequence[GlobalStep]
) -> list[tuple[float, int]]:
    """Relative distance of the gradient norm, and the step, for each step that both have."""
    ours = {s.step: s.grad_norm for s in reference}
    return [(_relative(ours[s.step], s.grad_norm), s.step) for s in candidate if s.step in ours]


def _relative(reference: float, value: float) -> float:
    return abs(value - reference) / abs(reference) if reference else math.inf


def worst(found: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """The largest distance with its step; NaN counts as larger, and no step at all as infinite."""
    # NaN orders with nothing, so it has to be looked for before the largest is taken.
    bad = next(((value, step) for value, step in found if math.isnan(value)), None)
    return bad or max(found, default=(math.inf, 0))


def _none(name: str, steps: list[int], compared: int) -> Check:
    # With nothing compared, nothing was found equal.
    return none_found(
        name,
        len(steps) if compared else 1,
        f"first at step {steps[0]}" if steps else f"{compared} steps compared",
    )


def _within(name: str, found: list[tuple[float, int]], limit: Limit, *, unit: str) -> Check:
    largest, step = worst(found)
    outside = next((s for v, s in found if not v <= limit.value), None)
    detail = f"largest at step {step}"
    if outside is not None:
        detail += f", first over the limit at step {outside}{_growth(found)}"
    return Check(
        name=name,
        measured=largest,
        comparator="<=",
        limit=limit.value,
        unit=unit,
        source="measured" if limit.basis else "config",
        detail=detail,
        basis=limit.basis,
    )


def _growth(found: list[tuple[float, int]]) -> str:
    values = [value for value, _ in found]
    grows = len(values) > 2 and all(a < b for a, b in pairwise(values))
    return "; it grows with every step" if grows else ""
