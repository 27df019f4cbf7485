"""Making a ladder's seed, reference, rerun and control, once, by its first stage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.control import control_checks, control_names, noise_between, noise_measures
from trn_validate.ladder import ResolvedRung
from trn_validate.launching import Trial, launch
from trn_validate.parity import Noise
from trn_validate.reference import (
    REFERENCE,
    RERUN,
    control_spec,
    make_seed,
    reference_checks,
    reference_names,
    reference_spec,
    rerun_checks,
    rerun_names,
)
from trn_validate.stage import Context


@dataclass(frozen=True)
class Made:
    """A ladder's seed, and the runs from it that its first stage owes."""

    seed: Path
    reference: Trial
    rerun: Trial
    control: Trial
    apart: Noise
    """Between the control and the reference."""
    noise: Noise
    """What limits follow from: on an accelerator a rerun is noise too."""

    def checks(self, plan: Plan) -> list[Check]:
        """Every check that does not need another layout."""
        return [
            *reference_checks(plan, self.reference),
            *rerun_checks(plan, self.reference, self.rerun),
            *control_checks(plan, self.reference, self.control, apart=self.apart, noise=self.noise),
        ]

    @property
    def judged(self) -> bool:
        """Whether the noise is a number, so that limits can follow from it."""
        return all(math.isfinite(value) for value in noise_measures(self.noise).values())


def make_reference(context: Context, rung: ResolvedRung) -> Made:
    """Make a ladder's seed and reference, then run it again and from perturbed weights."""
    plan, private = context.plan, context.attempt.private
    seed = make_seed(context, rung)
    (reference,) = launch(context, [reference_spec(plan, rung, REFERENCE, private, seed)])
    again = [
        reference_spec(plan, rung, RERUN, private, seed),
        control_spec(plan, rung, private, seed),
    ]
    if rung.degrees.world_size == 1:
        rerun, control = launch(context, again)
    else:
        (rerun,), (control,) = (launch(context, [spec]) for spec in again)
    apart = noise_between(reference, control)
    # The CPU repeats itself bit by bit, which other checks see to.
    exact = plan.profile.device == "cpu"
    noise = apart if exact else apart.and_also(noise_between(reference, rerun))
    return Made(seed, reference, rerun, control, apart, noise)


def made_names(plan: Plan) -> tuple[str, ...]:
    """Names of the checks that :meth:`Made.checks` makes."""
    return (*reference_names(), *rerun_names(plan), *control_names())
