"""Each NKI kernel against its reference: outputs and gradients first, then the whole run.

The models that are trained with kernels are held against runs that were accepted without: the
last dp_shard x tp rung of the last ladder eagerly, then compiled if that passed. The expert MLP
has a small mixture of experts of its own, with a control of its own, since no rung has experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stages.kernels_compile import COMPILED, targets
from stages.kernels_compile import FAMILY as COMPILE
from stages.kernels_compile import specs as compile_specs
from trn_validate.accepted import Reference, load_launch, load_rung
from trn_validate.collectives import lacking
from trn_validate.comparison import comparison_checks, comparison_names, yardstick
from trn_validate.compile_cache import launch_compiled
from trn_validate.compiling import compile_checks, compile_names
from trn_validate.config import Model, Plan
from trn_validate.control import CONTROL, control_checks, control_names, noise_between
from trn_validate.describing import describe, thing
from trn_validate.judging import common_checks, common_names
from trn_validate.kernel_ops import (
    STAGE,
    ops_checks,
    ops_names,
    ops_request,
    require_answer,
    write_entry,
)
from trn_validate.kernel_pairs import Pair, claim, pair_measures
from trn_validate.kernel_use import use_checks, use_names
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.launch import LaunchRequest
from trn_validate.launch_neuron import equipped
from trn_validate.launching import launch, renamed, request, run_spec
from trn_validate.reference import compared_with, from_seed
from trn_validate.rungs import rung_external, rung_reads
from trn_validate.sources import module_sources
from trn_validate.spec import Degrees, KernelUse, RunSpec
from trn_validate.stage import Context, Family, Findings, Place
from trn_validate.verdict import Compared, Outcome

EAGER = "kernels"
EXPERTS, PLAIN = "experts", "experts-plain"
PLAIN_EXPERTS = "trn_validate.kernels.overrides.plain_experts"
_ONE_STEP = {
    **{"steps": 1, "warmup_steps": 0, "compute_dtype": "float32"},
    # 76 million parameters: whole, they would take 2 GB of a run folder.
    "captures": "sketch",
}
"""A later step of a mixture of experts shows little: where two experts are almost equal, rounding
decides between them, and from then on two healthy runs part (loss 4.9e-5 apart at step 4, where
the gradients of step 1 were 8.8e-7 apart; one run on the CPU)."""


@dataclass(frozen=True)
class _KernelStage:
    id: str = STAGE
    asks: str = "each kernel against its reference: outputs and gradients, then the full run?"

    def reads(self, plan: Plan) -> object:
        """The rung with kernels, its ladder's reference, the mixture of experts, the list."""
        rung = layout(plan)
        rungs = rung_reads(plan, resolve(rung.ladder)[0], rung, experts_rung(plan))
        return {"plan": rungs, "kernels": [kernel.model_dump() for kernel in plan.kernels]}

    def external(self, plan: Plan) -> dict[str, str]:
        """Sources of the models' and the kernels' modules, and the texts that are trained on."""
        named = {module for kernel in plan.kernels for module in kernel.modules}
        sources = {module: module_sources(module) for module in sorted(named)}
        return rung_external(layout(plan)) | rung_external(experts_rung(plan)) | sources

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """Each operator alone, the run with kernels, and the mixture of experts thrice."""
        plan, private = place.plan, place.private
        specs = (eager_spec(place), compiled_spec(place), *experts_specs(plan, private))
        ops = (ops_request(plan, private, kernel) for kernel in plan.kernels)
        return (*ops, *(request(plan, spec) for spec in specs))

    def run(self, context: Context) -> Findings:
        """Train with kernels, and hold each run against the same one without."""
        if (reason := lacking(context, layout(context.plan))) is not None:
            return Findings(expects=(), unsupported=reason)
        findings = Findings(expects=())
        _operators(context, findings)
        accepted = load_rung(context, layout(context.plan))
        place = Place(plan=context.plan, private=context.attempt.private, seed=accepted.seed)
        _against(context, findings, accepted, eager_spec(place))
        if _compiled_passed(context):
            spec = compiled_spec(place)
            rung = layout(context.plan)
            without = load_launch(context, COMPILE.name, f"{COMPILED}-{rung.name}", accepted)
            _against(context, findings, without, spec)
        if _uses(context.plan, "experts"):
            _experts(context, findings)
        return findings


def _operators(context: Context, findings: Findings) -> None:
    """The operator of each kernel by itself."""
    plan = context.plan
    requests = tuple(ops_request(plan, context.attempt.private, one) for one in plan.kernels)
    for asked, kernel in zip(requests, plan.kernels, strict=True):
        write_entry(asked, kernel)
    context.say(f"checking the operators of {_joined(k.name for k in plan.kernels)}")
    device, private = plan.profile.device, context.run.private
    results = context.launcher.together(
        tuple(equipped(device, private, 1, request) for request in requests)
    )
    context.note(*results)
    for result in results:
        require_answer(context, result)
    for asked, kernel in zip(requests, plan.kernels, strict=True):
        findings.expects += ops_names(kernel)
        findings.checks += ops_checks(plan, asked, kernel)
        findings.artifacts.append(f"{context.attempt.relative}/{asked.name}")


def _against(context: Context, findings: Findings, without: Reference, spec: RunSpec) -> None:
    """One run with kernels, against the same run without."""
    plan = context.plan
    findings.expects += (*comparison_names(spec.name), *use_names(spec.name))
    trial = (
        launch(context, [spec])[0]
        if spec.compiled is None
        else launch_compiled(context, findings, spec)
    )
    findings.checks += comparison_checks(plan, without.yardstick, trial)
    findings.checks += use_checks(plan, trial)
    if spec.compiled is not None:
        findings.expects += compile_names(spec.name)
        layers = layout(plan).ladder.model.resolved().layers
        findings.checks += compile_checks(trial, layers)
    with_kernels = f"kernels {_joined(use.name for use in spec.kernels)}"
    own = thing(trial, context.attempt.relative, with_kernels)
    findings.compared.append(
        Compared(reference=without.thing, candidate=own, differ="implementation")
    )
    findings.artifacts.append(f"{context.attempt.relative}/{spec.name}")
    pairs = _timed(context, findings, spec) or [Pair(without.yardstick.steps, trial.records.steps)]
    measures = pair_measures(pairs)
    findings.measures |= {f"{spec.name}.{key}": value for key, value in measures.items()}
    findings.facts[f"{spec.name}: speed"] = claim(measures)
    describe(findings, trial, str(layout(plan).ladder.model))


def _timed(context: Context, findings: Findings, spec: RunSpec) -> list[Pair]:
    """Runs without and with kernels, one after the other, so that what drifts meets both."""
    if context.plan.kernel_pairs == 1:
        return []
    pairs = []
    for number in range(1, context.plan.kernel_pairs + 1):
        both = pair_specs(spec, context.attempt.private, number)
        findings.artifacts += [f"{context.attempt.relative}/{one.name}" for one in both]
        without, with_ = (launch(context, [one])[0].records.steps for one in both)
        pairs.append(Pair(without, with_))
    return pairs


def _experts(context: Context, findings: Findings) -> None:
    """A mixture of experts with the kernel against one with plain float32 experts."""
    plan, attempt = context.plan, context.attempt
    findings.expects += (
        *common_names(PLAIN),
        *control_names(),
        *comparison_names(EXPERTS),
        *use_names(EXPERTS),
    )
    plain_spec, control_spec, kernel_spec = experts_specs(plan, attempt.private)
    plain, control = launch(context, [plain_spec, control_spec])
    noise = noise_between(plain, control)
    findings.checks += common_checks(plan, plain)
    findings.checks += control_checks(plan, plain, control, apart=noise, noise=noise)
    (trial,) = launch(context, [kernel_spec])
    findings.checks += comparison_checks(plan, yardstick(plain, noise), trial)
    findings.checks += use_checks(plan, trial)
    findings.compared += [
        compared_with(context, plain, control),
        compared_with(context, plain, trial),
    ]
    findings.artifacts += [f"{attempt.relative}/{name}" for name in (PLAIN, CONTROL, EXPERTS)]


def _compiled_passed(context: Context) -> bool:
    verdict = context.earlier.get(COMPILE.name)
    return verdict is not None and verdict.outcome is Outcome.PASSED


def layout(plan: Plan) -> ResolvedRung:
    """The rung that gets kernels: what kernels.compile compiles last."""
    return targets(plan)[-1][1]


def _uses(plan: Plan, model: str) -> tuple[KernelUse, ...]:
    """The kernels that are put into that model."""
    return tuple(
        kernel.use for kernel in plan.kernels if kernel.override and kernel.override.model == model
    )


def _joined(names: Iterable[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last


def eager_spec(place: Place) -> RunSpec:
    """The accepted rung again, with kernels."""
    return _with_kernels(place, EAGER)


def compiled_spec(place: Place) -> RunSpec:
    """What kernels.compile compiled last, with kernels."""
    (*_, (name, rung)) = targets(place.plan)
    without = compile_specs(place, name, rung)[-1]
    return _with_kernels(place, f"{EAGER}-{COMPILED}", without)


def _with_kernels(place: Place, name: str, like: RunSpec | None = None) -> RunSpec:
    choice, rung = from_seed(place.seed), layout(place.plan)
    spec = run_spec(place.plan, rung, name, place.private, checkpoint=choice, captures=True)
    same = {"attention": like.attention, "compiled": like.compiled} if like else {}
    return spec.model_copy(update={"kernels": _uses(place.plan, "rung"), **same})


def pair_specs(spec: RunSpec, private: Path, number: int) -> tuple[RunSpec, RunSpec]:
    """One run without kernels and one with them, which keep nothing."""

    def timed(name: str, kernels: tuple[KernelUse, ...]) -> RunSpec:
        changes = {"kernels": kernels, "capture": "none", "count_communication": False}
        return renamed(spec, f"{spec.name}-{name}-{number}", private).model_copy(update=changes)

    return timed("without", ()), timed("with", spec.kernels)


def experts_rung(plan: Plan) -> ResolvedRung:
    """One process of a mixture of experts, cut to 2 layers."""
    ladder = plan.ladders[0]
    # A plan may drive the neuron code path with upstream's models, where there is no fork.
    upstream = all(one.model.module.startswith("torchtitan.") for one in plan.ladders)
    own = plan.profile.device == "cpu" or upstream
    fork = "torchtitan" if own else "torchtitan_neuron"
    model = Model(module=f"{fork}.models.qwen3", flavor="debugmodel_moe", layers=2)
    workload = ladder.workload.model_copy(update=_ONE_STEP)
    section = ladder.model_copy(update={"model": model, "workload": workload})
    return ResolvedRung(section, EXPERTS, None, None, Degrees())


def experts_specs(plan: Plan, private: Path) -> tuple[RunSpec, ...]:
    """Plain experts, the same from perturbed weights, and the kernels; none where none is listed.

    All three initialise the same weights, since they are one process of one seed.
    """
    rung, uses = experts_rung(plan), _uses(plan, "experts")

    def spec(name: str, **changes: object) -> RunSpec:
        return run_spec(plan, rung, name, private, captures=True).model_copy(update=changes)

    plain = {"overrides": (PLAIN_EXPERTS,)}
    three = (
        spec(PLAIN, keep_start=True, **plain),
        spec(CONTROL, perturb=1, keep_start=True, **plain),
        spec(EXPERTS, kernels=uses),
    )
    return three if uses else ()


FAMILY = Family(STAGE, _KernelStage.asks, lambda plan: (_KernelStage(),))
