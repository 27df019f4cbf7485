"""Compiled with fixed shapes: the same numbers, one graph per block, and no compiling again.

One process first, with the model of the first ladder, so that a fault of the compiler is not
taken for one of the layout; then the last dp_shard x tp rung of the last ladder. Each is held
against its own eager run. Where the backend refuses the ladder's attention, an eager twin with
causal attention is held against the accepted rung first, and stands in for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trn_validate.accepted import Reference, load_rung
from trn_validate.collectives import lacking
from trn_validate.comparison import comparison_checks, comparison_names, yardstick
from trn_validate.compile_cache import launch_compiled
from trn_validate.compiling import compile_checks, compile_measures, compile_names
from trn_validate.config import Plan
from trn_validate.describing import describe, series, thing
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.launch import LaunchRequest
from trn_validate.launching import launch, request, run_spec
from trn_validate.reference import from_seed
from trn_validate.rungs import rung_external, rung_reads
from trn_validate.spec import CompileChoice, RunSpec
from trn_validate.stage import Context, Family, Findings, Place
from trn_validate.verdict import Compared, Thing

COMPILED = "compiled"
TWIN = "eager"

_WITH_MASK = ("inductor", "aot_eager")
"""Backends that torchtitan lets compile a FlexAttention or a subclass of it."""


@dataclass(frozen=True)
class _CompileStage:
    id: str = "kernels.compile"
    asks: str = "compiled with fixed shapes: same numbers, one graph per block, no recompile?"

    def reads(self, plan: Plan) -> object:
        """Both rungs, and the references of their ladders."""
        rungs = [rung for _, rung in targets(plan)]
        return rung_reads(plan, *(resolve(rung.ladder)[0] for rung in rungs), *rungs)

    def external(self, plan: Plan) -> dict[str, str]:
        """Sources of the models' modules, and the texts that are trained on."""
        found: dict[str, str] = {}
        for _, rung in targets(plan):
            found |= rung_external(rung)
        return found

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """For each layout its twin, where it needs one, and the compiled run."""
        return tuple(
            request(place.plan, spec)
            for name, rung in targets(place.plan)
            for spec in specs(place, name, rung)
        )

    def run(self, context: Context) -> Findings:
        """Compile each layout, and hold it against its own eager run."""
        plan = context.plan
        reasons = (lacking(context, rung) for _, rung in targets(plan))
        if (reason := next(filter(None, reasons), None)) is not None:
            return Findings(expects=(), unsupported=reason)
        findings = Findings(expects=_expects(plan))
        for name, rung in targets(plan):
            eager = load_rung(context, rung)
            place = Place(plan=plan, private=context.attempt.private, seed=eager.seed)
            *twin, compiled = specs(place, name, rung)
            if twin:
                eager = _stand_in(context, findings, eager, twin[0])
            trial = launch_compiled(context, findings, compiled)
            findings.checks += comparison_checks(plan, eager.yardstick, trial)
            findings.checks += compile_checks(trial, rung.ladder.model.resolved().layers)
            how = f"compiled by {plan.profile.compile_backend}"
            _compare(context, findings, eager, thing(trial, context.attempt.relative, how))
            measures = compile_measures(trial, eager.step_seconds)
            findings.measures |= {f"{name}.{key}": value for key, value in measures.items()}
            describe(findings, trial, str(rung.ladder.model))
        return findings


def _stand_in(
    context: Context, findings: Findings, accepted: Reference, spec: RunSpec
) -> Reference:
    """The eager twin, held against the accepted rung."""
    (twin,) = launch(context, [spec])
    findings.checks += comparison_checks(context.plan, accepted.yardstick, twin)
    own = thing(twin, context.attempt.relative, f"attention {spec.attention}")
    _compare(context, findings, accepted, own)
    return Reference(
        seed=accepted.seed,
        thing=own,
        # It started from the same bits, of which the accepted rung has the tensors.
        yardstick=yardstick(twin, accepted.yardstick.noise).starting_from(accepted.yardstick),
        step_seconds=series(twin)["step_seconds"],
    )


def _compare(context: Context, findings: Findings, eager: Reference, candidate: Thing) -> None:
    # A twin is of the same attempt as what is compiled: only their processes can tell them apart.
    own = eager.thing.attempt == candidate.attempt
    findings.compared.append(
        Compared(
            reference=eager.thing,
            candidate=candidate,
            differ="processes" if own else "implementation",
        )
    )
    findings.artifacts.append(f"{context.attempt.relative}/{candidate.name}")


def targets(plan: Plan) -> tuple[tuple[str, ResolvedRung], ...]:
    """The layouts to compile: one process, and the last dp_shard x tp rung of the last ladder."""
    single = resolve(plan.ladders[0])[0]
    plain = [
        rung
        for rung in resolve(plan.ladders[-1])
        if rung.degrees.dp_shard > 1
        and rung.degrees.tp > 1
        and rung.degrees.cp == rung.degrees.pp == rung.degrees.dp_replicate == 1
    ]
    return tuple((f"{COMPILED}-{rung.name}", rung) for rung in (single, *plain[-1:]))


def specs(place: Place, name: str, rung: ResolvedRung) -> tuple[RunSpec, ...]:
    """The eager twin, where the backend refuses the ladder's attention, and the compiled run."""
    plan, attention = place.plan, rung.ladder.workload.attention
    backend = plan.profile.compile_backend
    refused = backend not in _WITH_MASK and attention != "causal"
    if refused:
        attention = "causal"

    def spec(name: str, compiled: CompileChoice | None) -> RunSpec:
        choice = from_seed(place.seed)
        plain = run_spec(plan, rung, name, place.private, checkpoint=choice, captures=True)
        return plain.model_copy(update={"attention": attention, "compiled": compiled})

    compiled = spec(name, CompileChoice(backend=backend))
    return (spec(f"{TWIN}-{rung.name}", None), compiled) if refused else (compiled,)


def _expects(plan: Plan) -> tuple[str, ...]:
    place = Place(plan=plan, private=Path(), seed=Path())
    names: list[str] = []
    for name, rung in targets(plan):
        for spec in specs(place, name, rung):
            names += comparison_names(spec.name)
        names += compile_names(name)
    return tuple(names)


FAMILY = Family("kernels.compile", _CompileStage.asks, lambda plan: (_CompileStage(),))
