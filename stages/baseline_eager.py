"""One process, eager, a few steps: finite, falling, reproducible.

Makes the seed checkpoint and the reference of the first ladder, which later stages read.
"""

from __future__ import annotations

from dataclasses import dataclass

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.judging import (
    common_checks,
    common_names,
    describe,
    global_steps,
    whole_parameters,
)
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.launch import LaunchRequest
from trn_validate.launching import Trial, launch, request, run_spec
from trn_validate.parity import parity_checks, parity_names
from trn_validate.records import RunSpec
from trn_validate.reference import (
    REFERENCE,
    RERUN,
    SEED,
    compared_with,
    from_seed,
    make_seed,
    reference_checks,
    reference_names,
    reference_spec,
    rerun_checks,
    rerun_names,
    seed_spec,
)
from trn_validate.rungs import rung_external, rung_reads
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
        """Seed, reference, rerun and the run with gradient accumulation."""
        plan, private, rung = place.plan, place.private, first_rung(place.plan)
        return tuple(
            request(plan, spec)
            for spec in (
                seed_spec(plan, rung, private),
                reference_spec(plan, rung, REFERENCE, private, place.seed),
                reference_spec(plan, rung, RERUN, private, place.seed),
                accumulation_spec(plan, rung, place),
            )
        )

    def run(self, context: Context) -> Findings:
        """Run the reference alone, since it is timed, then its two repetitions side by side."""
        plan, private, rung = context.plan, context.attempt.private, first_rung(context.plan)
        seed = make_seed(context, rung)
        place = Place(plan=plan, private=private, seed=seed)
        (reference,) = launch(context, [reference_spec(plan, rung, REFERENCE, private, seed)])
        rerun, accumulated = launch(
            context,
            [
                reference_spec(plan, rung, RERUN, private, seed),
                accumulation_spec(plan, rung, place),
            ],
        )
        attempt = context.attempt.relative
        findings = Findings(expects=_expects(plan))
        findings.checks += reference_checks(plan, reference)
        findings.checks += rerun_checks(plan, reference, rerun)
        findings.checks += _accumulation_checks(plan, reference, accumulated)
        findings.compared = [
            compared_with(context, reference, rerun),
            compared_with(context, reference, accumulated),
        ]
        findings.measures = {"parameters": float(whole_parameters(reference.records))}
        describe(findings, reference, str(rung.ladder.model))
        findings.artifacts = [
            f"{attempt}/{name}" for name in (SEED, REFERENCE, RERUN, ACCUMULATION)
        ]
        return findings


def _expects(plan: Plan) -> tuple[str, ...]:
    accumulation = (*common_names(ACCUMULATION), *parity_names(ACCUMULATION))
    return (*reference_names(), *rerun_names(plan), *accumulation)


def _accumulation_checks(plan: Plan, reference: Trial, accumulated: Trial) -> list[Check]:
    """The same batch in smaller pieces is the same step."""
    parameters = whole_parameters(reference.records)
    return [
        *common_checks(plan, accumulated, parameters=parameters),
        *parity_checks(
            ACCUMULATION,
            global_steps(reference.records),
            global_steps(accumulated.records),
            steps=reference.spec.steps,
            loss_absolute=plan.limits.loss_absolute,
            grad_norm_relative=plan.limits.grad_norm_relative,
        ),
    ]


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
    )


FAMILY = Family("baseline.eager", _EagerStage.asks, lambda plan: (_EagerStage(),))
