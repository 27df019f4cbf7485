"""One process, eager, a few steps: finite, falling, reproducible.

Makes the seed checkpoint and the reference of the first ladder, which later stages read.
"""

from __future__ import annotations

from dataclasses import dataclass

from trn_validate.comparison import comparison_checks, comparison_names, yardstick
from trn_validate.config import Plan
from trn_validate.control import CONTROL, noise_measures
from trn_validate.describing import describe
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.launch import LaunchRequest
from trn_validate.launching import launch, request, run_spec
from trn_validate.making import made_names, make_reference
from trn_validate.reference import (
    REFERENCE,
    RERUN,
    SEED,
    compared_with,
    control_spec,
    from_seed,
    reference_spec,
    seed_spec,
)
from trn_validate.rungs import rung_external, rung_reads
from trn_validate.spec import RunSpec
from trn_validate.stage import Context, Family, Findings, Place

ACCUMULATION = "accumulation"


class OnFirstRung:
    """A stage of the first ladder's first rung, on which alone its answer depends."""

    def reads(self, plan: Plan) -> object:
        """The first ladder's first rung."""
        return rung_reads(plan, first_rung(plan))

    def external(self, plan: Plan) -> dict[str, str]:
        """Sources of the model's module, and the text that is trained on."""
        return rung_external(first_rung(plan))


@dataclass(frozen=True)
class _EagerStage(OnFirstRung):
    id: str = "baseline.eager"
    asks: str = "one process, eager, a few steps: finite, falling, reproducible?"

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """Seed, reference, rerun, control and the run with gradient accumulation."""
        plan, private, rung = place.plan, place.private, first_rung(place.plan)
        return tuple(
            request(plan, spec)
            for spec in (
                seed_spec(plan, rung, private),
                reference_spec(plan, rung, REFERENCE, private, place.seed),
                reference_spec(plan, rung, RERUN, private, place.seed),
                control_spec(plan, rung, private, place.seed),
                accumulation_spec(plan, rung, place),
            )
        )

    def run(self, context: Context) -> Findings:
        """Run the reference alone, since it is timed, then its repetitions side by side."""
        plan, rung = context.plan, first_rung(context.plan)
        findings = Findings(expects=_expects(plan))
        made = make_reference(context, rung)
        findings.checks += made.checks(plan)
        place = Place(plan=plan, private=context.attempt.private, seed=made.seed)
        (accumulated,) = launch(context, [accumulation_spec(plan, rung, place)])
        if made.judged:
            findings.checks += comparison_checks(
                plan, yardstick(made.reference, made.noise), accumulated
            )
        findings.compared = [
            compared_with(context, made.reference, other)
            for other in (made.rerun, made.control, accumulated)
        ]
        findings.measures = {
            "parameters": float(made.reference.records.parameters),
            **noise_measures(made.noise),
        }
        describe(findings, made.reference, str(rung.ladder.model))
        names = (SEED, REFERENCE, RERUN, CONTROL, ACCUMULATION)
        findings.artifacts = [f"{context.attempt.relative}/{name}" for name in names]
        return findings


def _expects(plan: Plan) -> tuple[str, ...]:
    return (*made_names(plan), *comparison_names(ACCUMULATION))


def first_rung(plan: Plan) -> ResolvedRung:
    """The reference layout of the plan's first ladder."""
    return resolve(plan.ladders[0])[0]


def accumulation_spec(plan: Plan, rung: ResolvedRung, place: Place) -> RunSpec:
    """The same batch in as many micro-batches as it has samples for each rank."""
    return run_spec(
        plan,
        rung,
        ACCUMULATION,
        place.private,
        checkpoint=from_seed(place.seed),
        local_batch_size=max(1, rung.degrees.pp),
        captures=True,
    )


FAMILY = Family("baseline.eager", _EagerStage.asks, lambda plan: (_EagerStage(),))
