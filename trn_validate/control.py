"""The control run of a ladder: how far rounding alone moves each figure.

It is the reference again, from weights that are moved by one unit in the last place of the
compute dtype. Limits follow from it, so it has to be judged itself: a control in which nothing
moved would allow too little, and one that is too noisy would allow anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.folded import GlobalStep
from trn_validate.judging import common_checks, common_names
from trn_validate.launching import Trial
from trn_validate.limits import Bound, Deviations
from trn_validate.parity import Noise, Tolerance, loss_distances, norm_distances, worst
from trn_validate.spec import DTYPE
from trn_validate.tensors import (
    REPLICAS,
    Kept,
    changes,
    kept,
    largest,
    replicas_check,
    slopes,
)

CONTROL = "control"

_FIGURES = {
    "loss_absolute": ("loss", "nats"),
    "grad_norm_relative": ("grad norm", "relative"),
    "gradient_relative": ("gradient of step 1", "relative L2"),
    "parameter_relative": ("parameters after the last step", "relative L2"),
}
MEASURES = {figure: f"{CONTROL}_{figure}" for figure in _FIGURES}
"""Under which name a verdict's measures hold each figure of the noise."""


def trial_kept(trial: Trial) -> Kept:
    """What the ranks of a launch of this stage kept."""
    return kept(trial.records, trial.captures, accepted=False, meter=trial.meter)


def noise_between(reference: Trial, other: Trial) -> Noise:
    """How far two runs of one layout are apart.

    Raises:
        EvidenceError: a file of tensors is missing or is not what its record says.
    """
    return noise_from(reference.records.steps, trial_kept(reference), other)


def noise_from(steps: Sequence[GlobalStep], ours: Kept, other: Trial) -> Noise:
    """How far a run is from a reference of which these are the steps and what was kept.

    Raises:
        EvidenceError: a file of tensors is missing or is not what its record says.
    """
    found, theirs = other.records.steps, trial_kept(other)
    return Noise(
        loss_absolute=worst(loss_distances(steps, found))[0],
        grad_norm_relative=worst(norm_distances(steps, found))[0],
        gradient_relative=largest(slopes(ours, theirs)),
        parameter_relative=largest(changes(ours, theirs)),
    )


def control_names() -> tuple[str, ...]:
    """Names of the checks that :func:`control_checks` makes."""
    return (
        *common_names(CONTROL),
        f"{CONTROL}: {REPLICAS}",
        f"{CONTROL}: steps with other rows",
        f"{CONTROL}: weights that were not moved",
        f"{CONTROL}: effect on the gradient",
        *(f"{CONTROL}: noise of the {what}" for what, _ in _FIGURES.values()),
    )


def control_checks(
    plan: Plan, reference: Trial, control: Trial, *, apart: Noise, noise: Noise
) -> list[Check]:
    """Whether the control is a control, and quiet enough to judge by.

    Args:
        apart: how far the control alone is from the reference.
        noise: what limits follow from; on an accelerator a rerun is in it too.
    """
    bounds = plan.limits.of(reference.spec.compute_dtype)
    steps = {s.step: s.rows for s in reference.records.steps}
    found = control.records.steps
    other = [s.step for s in found if steps.get(s.step) != s.rows]
    return [
        *common_checks(plan, control, parameters=reference.records.parameters),
        replicas_check(CONTROL, trial_kept(control)),
        Check(
            name=f"{CONTROL}: steps with other rows",
            # With nothing compared, nothing was found equal.
            measured=len(other) if found else 1,
            comparator="==",
            limit=0,
            source="derived",
            detail=f"first at step {other[0]}" if other else f"{len(found)} steps compared",
        ),
        _moved(trial_kept(reference), trial_kept(control)),
        Check(
            name=f"{CONTROL}: effect on the gradient",
            measured=apart.gradient_relative,
            comparator=">",
            limit=0.0,
            unit="relative L2",
            source="derived",
            detail="a control that moves nothing measures nothing",
        ),
        *(_quiet(figure, bounds, noise) for figure in _FIGURES),
    ]


def _moved(reference: Kept, control: Kept) -> Check:
    ours = reference.start.digests if reference.start else {}
    norms = reference.start.norms if reference.start else {}
    theirs = control.start.digests if control.start else {}
    # A weight that is zero has no last place to move by.
    still = [n for n in ours if norms[n] > 0 and ours[n] == theirs.get(n, ours[n])]
    return Check(
        name=f"{CONTROL}: weights that were not moved",
        measured=len(still) if ours else 1,
        comparator="==",
        limit=0,
        unit="parameters",
        source="derived",
        detail=f"first {still[0]}" if still else f"{len(ours)} parameters",
    )


def _quiet(figure: str, bounds: Deviations, noise: Noise) -> Check:
    what, unit = _FIGURES[figure]
    bound: Bound = getattr(bounds, figure)
    return Check(
        name=f"{CONTROL}: noise of the {what}",
        measured=getattr(noise, figure),
        comparator="<",
        limit=bound.ceiling,
        unit=unit,
        source="config",
        detail="above this the plan is too noisy to judge",
    )


def noise_measures(noise: Noise) -> dict[str, float]:
    """The noise as a verdict's measures keep it."""
    return {name: getattr(noise, figure) for figure, name in MEASURES.items()}


def measured_noise(measures: Mapping[str, float]) -> Noise | None:
    """The noise that a verdict's measures hold; None where one of its figures is missing."""
    figures = {figure: measures.get(name) for figure, name in MEASURES.items()}
    found = {figure: value for figure, value in figures.items() if value is not None}
    return Noise(**found) if len(found) == len(MEASURES) else None


def tolerance_of(plan: Plan, dtype: DTYPE, noise: Noise) -> Tolerance:
    """What decides between two layouts of a ladder that computes in ``dtype``."""
    return Tolerance(plan.limits.of(dtype), plan.limits.factor_of(dtype), noise)
