"""Save, verify, resume: does a checkpoint hold all that training needs, and is damage noticed?"""

from __future__ import annotations

from dataclasses import dataclass

from stages.baseline_eager import OnFirstRung, first_rung
from trn_validate.accepted import load_reference
from trn_validate.check import Check
from trn_validate.damage import DAMAGE, damage_names, damaged
from trn_validate.describing import describe, thing
from trn_validate.judging import place_checks, place_names
from trn_validate.launch import LaunchRequest
from trn_validate.launching import Trial, launch, request
from trn_validate.reference import compared_with, state_check
from trn_validate.resume import (
    RELOAD,
    RELOADED,
    RESUME,
    SAVE,
    reload_spec,
    resume_names,
    resume_spec,
    safetensors_elements,
    save_and_resume,
    save_spec,
)
from trn_validate.stage import Context, Family, Findings, Place
from trn_validate.verdict import Compared

EXPORT = "export"
_ELEMENTS = f"{EXPORT}: elements in the safetensors"


@dataclass(frozen=True)
class _CheckpointStage(OnFirstRung):
    id: str = "baseline.checkpoint"
    asks: str = "save, resume and export: exact state, same trajectory, damage noticed?"

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """Save, resume, reload, and the two that must not start."""
        plan, private, rung = place.plan, place.private, first_rung(place.plan)
        specs = (
            save_spec(plan, rung, private, place.seed),
            resume_spec(plan, rung, RESUME, private),
            reload_spec(plan, rung, private),
            *(resume_spec(plan, rung, how, private) for how in DAMAGE),
        )
        return tuple(request(plan, spec) for spec in specs)

    def run(self, context: Context) -> Findings:
        """Save halfway, resume from there, load the export, and break two copies."""
        rung, attempt = first_rung(context.plan), context.attempt.relative
        reference = load_reference(context, rung.ladder.name)
        ours = reference.yardstick
        findings = Findings(expects=_expects())
        checks, saved, resumed = save_and_resume(context, rung, reference.seed, ours)
        findings.checks += checks
        again = thing(saved, attempt)
        findings.compared = [
            Compared(reference=reference.thing, candidate=again, differ="processes")
        ]
        describe(findings, saved, str(rung.ladder.model))
        findings.artifacts = [f"{attempt}/{SAVE}"]
        if resumed is None:
            return findings
        findings.compared.append(compared_with(context, saved, resumed))
        findings.artifacts.append(f"{attempt}/{RESUME}")
        findings.checks += self._export(context, findings, resumed, ours.parameters)
        findings.checks += damaged(context, rung, saved)
        findings.artifacts += [f"{attempt}/{name}" for name in (RELOAD, *DAMAGE)]
        return findings

    def _export(
        self, context: Context, findings: Findings, resumed: Trial, parameters: int
    ) -> list[Check]:
        """The export has every element, and loading it gives the weights that were exported."""
        plan, rung = context.plan, first_rung(context.plan)
        steps = rung.ladder.workload.steps
        exported = resumed.checkpoints / f"step-{steps}"
        elements = context.observer.see(
            f"{EXPORT}: elements of each tensor",
            dict[str, int],
            lambda: safetensors_elements(exported),
        )
        checks = [
            Check(
                name=_ELEMENTS,
                measured=sum(elements.values()),
                comparator="==",
                limit=parameters,
                source="derived",
                detail=f"{len(elements)} tensors",
            )
        ]
        # What lacks a tensor cannot be loaded: that would hide the check behind a crash.
        if checks[0].passed:
            (reloaded,) = launch(context, [reload_spec(plan, rung, context.attempt.private)])
            checks += place_checks(plan, reloaded)
            checks.append(
                state_check(RELOADED, resumed, reloaded, steps, 0, parts=("model",), at_start=True)
            )
            context.attempt.adopt(exported, EXPORT)
            findings.artifacts.append(f"{context.attempt.relative}/{EXPORT}")
        return checks


def _expects() -> tuple[str, ...]:
    return (*resume_names(), _ELEMENTS, *place_names(RELOAD), RELOADED, *damage_names())


FAMILY = Family("baseline.checkpoint", _CheckpointStage.asks, lambda plan: (_CheckpointStage(),))
