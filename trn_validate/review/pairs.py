"""What was held against what: each comparison of the verdicts with its limits and distances."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trn_validate.check import Check
from trn_validate.control import CONTROL
from trn_validate.distances import Deviation
from trn_validate.folded import GlobalStep
from trn_validate.review.cells import GRADIENT
from trn_validate.review.figures import LaunchFigures
from trn_validate.review.material import Material
from trn_validate.verdict import Thing, Verdict


@dataclass(frozen=True)
class Pair:
    """One comparison, with what both sides recorded."""

    verdict: Verdict
    name: str
    reference: LaunchFigures
    candidate: LaunchFigures
    root: str
    """Place of the run that stands at the end of the chain of references: that of the ladder."""
    noise: bool
    """Whether this is the control, whose distance is what rounding alone makes."""

    @property
    def steps(self) -> tuple[tuple[GlobalStep, GlobalStep], ...]:
        """Steps that both sides recorded, the reference's first."""
        theirs = {step.step: step for step in self.reference.steps}
        ours = self.candidate.steps
        return tuple((theirs[step.step], step) for step in ours if step.step in theirs)

    @property
    def losses(self) -> tuple[tuple[float, float], ...]:
        """Step, and the loss minus the reference's."""
        return tuple((float(a.step), b.loss - a.loss) for a, b in self.steps)

    @property
    def norms(self) -> tuple[tuple[float, float], ...]:
        """Step, and the relative difference of the gradient norm."""
        return tuple((float(a.step), _relative(a.grad_norm, b.grad_norm)) for a, b in self.steps)

    def check(self, kind: str) -> Check | None:
        """The verdict's check of one kind on the candidate."""
        name = f"{self.candidate.name}: {kind}"
        return next((check for check in self.verdict.checks if check.name == name), None)

    def limit(self, kind: str) -> float | None:
        """What the verdict allows, where it allows anything but equality."""
        check = self.check(kind)
        return float(check.limit) if check and not isinstance(check.limit, str) else None


def pairs(material: Material, *, noise: bool = False) -> tuple[Pair, ...]:
    """Comparisons that judge gradients; with ``noise`` the controls too.

    A rerun, a save and a resume are left out: they owe equality, of which a plot shows nothing.
    """
    found = tuple(_pairs(material))
    return found if noise else tuple(pair for pair in found if not pair.noise)


def _pairs(material: Material) -> Iterator[Pair]:
    above = {
        _place(pair.candidate): _place(pair.reference)
        for verdict in material.verdicts
        for pair in verdict.compared
    }
    for verdict in material.verdicts:
        for one in verdict.compared:
            name = one.candidate.name
            noise = name == CONTROL
            judged = any(check.name == f"{name}: {GRADIENT}" for check in verdict.checks)
            sides = material.launch(_place(one.reference)), material.launch(_place(one.candidate))
            if sides[0] is None or sides[1] is None or not (judged or noise):
                continue
            yield Pair(
                verdict=verdict,
                name=name,
                reference=sides[0],
                candidate=sides[1],
                root=_root(_place(one.reference), above),
                noise=noise,
            )


def _place(thing: Thing) -> str:
    return f"{thing.attempt}/{thing.name}"


def _root(place: str, above: dict[str, str]) -> str:
    # Bounded, since a verdict that was tampered with may name a circle.
    for _ in range(len(above)):
        if place not in above:
            break
        place = above[place]
    return place


def _relative(reference: float, other: float) -> float:
    """As the check has it: over the reference's norm."""
    return abs(other - reference) / abs(reference) if reference else math.inf


def deviations_of(material: Material, pair: Pair) -> tuple[Deviation, ...]:
    """Distance of every parameter's gradient, in forward order; empty where none was kept."""
    for one in material.distances:
        places = (one.reference, one.candidate)
        if one.of == "gradient" and places == (pair.reference.place, pair.candidate.place):
            return one.deviations
    return ()
