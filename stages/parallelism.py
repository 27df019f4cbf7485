"""One stage per rung: does one more parallel dimension leave training what it was?

The first rung of the first ladder is judged by baseline.eager. The first rung of a later
ladder has nothing to be compared with, so it is checked by itself: finite, falling, run
again, saved and resumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from trn_validate.accepted import load_reference
from trn_validate.collectives import lacking
from trn_validate.comparison import comparison_checks, comparison_names, yardstick
from trn_validate.config import Plan
from trn_validate.control import CONTROL, noise_measures
from trn_validate.describing import describe, thing
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
from trn_validate.resume import (
    RESUME,
    SAVE,
    resume_names,
    resume_spec,
    save_and_resume,
    save_spec,
)
from trn_validate.rungs import rung_external, rung_reads
from trn_validate.spec import RunSpec
from trn_validate.stage import Context, Family, Findings, Place, Stage
from trn_validate.verdict import Compared


@dataclass(frozen=True)
class _OfRung:
    """What every stage of a rung has."""

    rung: ResolvedRung

    @property
    def id(self) -> str:
        """Name of the verdict."""
        return self.rung.stage

    def external(self, plan: Plan) -> dict[str, str]:
        """Sources of the model's module, and the text that is trained on."""
        return rung_external(self.rung)


@dataclass(frozen=True)
class _RungStage(_OfRung):
    """A rung that adds a dimension, compared with its ladder's reference."""

    @property
    def asks(self) -> str:
        """The question, with the dimension that is added."""
        added = f"{self.rung.adds} {getattr(self.rung.degrees, self.rung.adds or 'tp')}"
        return f"does {added} on {self.rung.extends} leave training unchanged?"

    def reads(self, plan: Plan) -> object:
        """The rung, and the first of its ladder."""
        return rung_reads(plan, resolve(self.rung.ladder)[0], self.rung)

    def spec(self, place: Place) -> RunSpec:
        """The rung's launch, from the seed of its ladder."""
        spec = run_spec(
            place.plan,
            self.rung,
            self.rung.name,
            place.private,
            checkpoint=from_seed(place.seed),
            captures=True,
        )
        return spec.model_copy(update={"count_communication": True})

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """The rung, once."""
        return (request(place.plan, self.spec(place)),)

    def run(self, context: Context) -> Findings:
        """Train the same samples from the same weights in the rung's layout."""
        plan, rung = context.plan, self.rung
        if (reason := lacking(context, rung)) is not None:
            return Findings(expects=(), unsupported=reason)
        reference = load_reference(context, rung.ladder.name)
        place = Place(plan=plan, private=context.attempt.private, seed=reference.seed)
        findings = Findings(expects=comparison_names(rung.name))
        (trial,) = launch(context, [self.spec(place)])
        findings.checks += comparison_checks(plan, reference.yardstick, trial)
        candidate = thing(trial, context.attempt.relative)
        findings.compared = [
            Compared(reference=reference.thing, candidate=candidate, differ="layout")
        ]
        findings.artifacts = [f"{context.attempt.relative}/{rung.name}"]
        describe(findings, trial, str(rung.ladder.model))
        return findings


@dataclass(frozen=True)
class _ReferenceStage(_OfRung):
    """The first rung of a later ladder: the reference of what follows, checked by itself."""

    @property
    def asks(self) -> str:
        """The question, with the layout."""
        return f"does {self.rung.ladder.name} train in its smallest layout, {self.rung.degrees}?"

    def reads(self, plan: Plan) -> object:
        """The rung."""
        return rung_reads(plan, self.rung)

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """Seed, reference, rerun, save and resume."""
        plan, private, rung = place.plan, place.private, self.rung
        specs = (
            seed_spec(plan, rung, private),
            reference_spec(plan, rung, REFERENCE, private, place.seed),
            reference_spec(plan, rung, RERUN, private, place.seed),
            control_spec(plan, rung, private, place.seed),
            save_spec(plan, rung, private, place.seed),
            resume_spec(plan, rung, RESUME, private),
        )
        return tuple(request(plan, spec) for spec in specs)

    def run(self, context: Context) -> Findings:
        """Make the ladder's seed, reference and control, run it again, save and resume it."""
        plan, rung = context.plan, self.rung
        if (reason := lacking(context, rung)) is not None:
            return Findings(expects=(), unsupported=reason)
        findings = Findings(expects=(*made_names(plan), *resume_names()))
        made = make_reference(context, rung)
        findings.checks += made.checks(plan)
        ours = yardstick(made.reference, made.noise)
        checks, saved, resumed = save_and_resume(context, rung, made.seed, ours)
        findings.checks += checks
        findings.compared = [
            compared_with(context, made.reference, other)
            for other in (made.rerun, made.control, saved)
        ]
        if resumed is not None:
            findings.compared.append(compared_with(context, saved, resumed))
        findings.artifacts = [
            f"{context.attempt.relative}/{name}"
            for name in (SEED, REFERENCE, RERUN, CONTROL, SAVE, RESUME)
        ]
        findings.measures = noise_measures(made.noise)
        describe(findings, made.reference, str(rung.ladder.model))
        return findings


def members(plan: Plan) -> tuple[Stage, ...]:
    """Stages of every rung but the first of the first ladder, in the plan's order."""
    stages: list[Stage] = []
    for position, ladder in enumerate(plan.ladders):
        first, *others = resolve(ladder)
        if position > 0:
            stages.append(_ReferenceStage(first))
        stages += [_RungStage(rung) for rung in others]
    return tuple(stages)


FAMILY = Family(
    "parallelism.<rung>", "does one more parallel dimension leave training unchanged?", members
)
