"""What kernels.nki launches, holds against what, and which check says no to which defect."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.kernels_nki import FAMILY, PLAIN_EXPERTS, experts_rung, experts_specs
from tests.builders import CONFIGS, ROOT
from tests.fake_training import (
    Defect,
    Launch,
    Rig,
    altered,
    bent,
    ends,
    failing,
    ladder_plan,
    within,
    without,
)
from trn_validate import plan as plans
from trn_validate import yaml_file
from trn_validate.config import Plan
from trn_validate.kernel_list import LIST
from trn_validate.launch import Cause
from trn_validate.records import Compilation, Kernels, Step
from trn_validate.spec import RunSpec
from trn_validate.stage import Place
from trn_validate.verdict import Outcome, Verdict

STAGE, COMPILE = "kernels.nki", "kernels.compile"
OPS = ["ops-rmsnorm", "ops-swiglu", "ops-expert_mlp"]
EXPERTS = ["experts-plain", "control", "experts"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A run in which every stage passed."""
    rig = Rig(tmp_path_factory.mktemp("nki"))
    assert rig.walk() == 0
    return rig


def plan_with(folder: Path, *kept: str, **changes: Any) -> Plan:
    """A plan whose list has these kernels alone; the first one is changed so."""
    raw = copy.deepcopy(yaml_file.read(LIST))
    raw["kernels"] = [entry for entry in raw["kernels"] if entry["name"] in kept]
    raw["kernels"][0] |= changes
    path = folder / "kernels.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return ladder_plan(folder, f"kernels={path}")


def answered(**changes: Any) -> Defect:
    """A process of op checks that answers otherwise."""

    def apply(launch: Launch) -> None:
        assert launch.answer is not None
        launch.answer |= changes

    return apply


def inaccurate(launch: Launch) -> None:
    """An error of three times that of torch."""
    assert launch.answer is not None
    launch.answer["checks"][0]["measured"] = 3.0


def names(plan: Plan) -> list[str]:
    (stage,) = FAMILY.members(plan)
    place = Place(plan=plan, private=Path("private"), seed=Path("seed"))
    return [request.name for request in stage.launches(place)]


def test_operators_come_first_then_the_rung_then_the_mixture_of_experts(tmp_path: Path) -> None:
    plan = ladder_plan(tmp_path)
    assert names(plan) == [*OPS, "kernels", "kernels-compiled", *EXPERTS]


def test_a_list_without_experts_trains_none(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, "swiglu")
    assert names(plan) == ["ops-swiglu", "kernels", "kernels-compiled"]
    rig = Rig(tmp_path, plan=plan)
    assert rig.walk() == 0
    assert not any("experts" in check.name for check in rig.verdict(STAGE).checks)


def test_a_healthy_run_passes_and_says_what_it_was_held_against(rig: Rig) -> None:
    verdict = rig.verdict(STAGE)
    assert verdict.outcome is Outcome.PASSED
    pairs = [
        (pair.reference.attempt, pair.reference.name, pair.candidate.name, pair.differ)
        for pair in verdict.compared
    ]
    attempt = f"{STAGE}/1"
    assert pairs == [
        ("parallelism.tp/1", "tp", "kernels", "implementation"),
        ("kernels.compile/1", "compiled-tp", "kernels-compiled", "implementation"),
        (attempt, "experts-plain", "control", "processes"),
        (attempt, "experts-plain", "experts", "processes"),
    ]
    assert verdict.compared[0].candidate.layout.endswith("kernels rmsnorm and swiglu")
    assert verdict.measures["kernels.with_over_without"] == 1.0
    assert verdict.measures["kernels-compiled.peak_memory_bytes"] > 0
    own = {one.folder.name for one in rig.launcher.requests if STAGE in one.folder.parts}
    assert rested(verdict) == own | {"distances.json", "observed.json"}


def rested(verdict: Verdict) -> set[str]:
    return {artifact.path.split("/")[2] for artifact in verdict.artifacts}


def test_the_run_with_kernels_is_the_accepted_one_but_for_them(rig: Rig) -> None:
    specs = {
        request.name: (request.folder / "spec.json").read_text(encoding="utf-8")
        for request in rig.launcher.requests
        if (request.folder / "spec.json").exists()
    }

    def plain(name: str) -> dict[str, Any]:
        spec = RunSpec.model_validate_json(specs[name])
        own = {"name", "records", "dump", "stacks", "kernels", "count_communication"}
        return spec.model_dump(exclude=own)

    assert plain("kernels") == plain("tp")
    assert plain("kernels-compiled") == plain("compiled-tp")


def test_the_experts_start_alike_and_only_the_kernel_differs(tmp_path: Path) -> None:
    plain, control, kernel = experts_specs(ladder_plan(tmp_path), tmp_path)
    assert plain.overrides == control.overrides == (PLAIN_EXPERTS,)
    assert [use.name for use in kernel.kernels] == ["expert_mlp"]
    assert (plain.perturb, control.perturb, kernel.perturb) == (0, 1, 0)
    assert {spec.seed for spec in (plain, control, kernel)} == {42}
    assert {spec.steps for spec in (plain, control, kernel)} == {1}
    assert {spec.model.flavor for spec in (plain, control, kernel)} == {"debugmodel_moe"}


@pytest.mark.parametrize(
    ("launch", "defect", "check", "detail"),
    [
        ("ops-rmsnorm", inaccurate, "rmsnorm float32, ragged: largest error", ""),
        ("ops-swiglu", answered(provider="none"), "swiglu: provider", ""),
        ("ops-swiglu", answered(checks=[]), "swiglu: checks that were not made", "ragged"),
        (
            "ops-expert_mlp",
            answered(checks=[], error="a tile of 300 partitions"),
            "expert_mlp: checks that were not made",
            "300 partitions",
        ),
        (
            "kernels",
            altered(Kernels, rank=3, launches={}),
            "kernels: launches of kernels",
            "rmsnorm_forward of rank 3: 0 launches, 12 owed",
        ),
        (
            "kernels",
            altered(Kernels, rank=1, left={"rmsnorm": ("layers.0.attention_norm",)}),
            "kernels: modules without their kernel",
            "layers.0.attention_norm of rank 1",
        ),
        (
            "kernels",
            bent("gradient", lambda a: a * 1.02, "norm.weight"),
            "kernels: gradient of step 1",
            "norm.weight",
        ),
        ("kernels", altered(Step, step=4, loss=7.6), "kernels: loss against the reference", "4"),
        (
            "kernels-compiled",
            altered(Kernels, rank=2, launches={}),
            "kernels-compiled: launches of kernels",
            "rank 2",
        ),
        (
            "kernels-compiled",
            altered(Compilation, rank=3, breaks=("trn_validate::rmsnorm_forward",)),
            "kernels-compiled: graph breaks",
            "rmsnorm_forward",
        ),
        (
            "experts",
            altered(Kernels, launches={"expert_mlp_forward": 2, "expert_mlp_backward": 2}),
            "experts: launches of kernels",
            "expert_mlp_weights",
        ),
        (
            "experts",
            bent("gradient", lambda a: a * 2, "norm.weight"),
            "experts: gradient of step 1",
            "norm.weight",
        ),
        ("control", bent("gradient", lambda a: a * 1.01), "control: noise of the gradient", ""),
    ],
)
def test_a_fault_fails_the_check_meant_for_it(
    rig: Rig, launch: str, defect: Defect, check: str, detail: str
) -> None:
    verdict = rig.rerun(STAGE, within(launch, defect))
    said_no = failing(verdict)
    assert any(name.startswith(check) for name in said_no), said_no
    assert {name.partition(": ")[0].partition(" ")[0] for name in said_no} == {
        check.partition(": ")[0].partition(" ")[0]
    }
    assert any(detail in one.detail for one in verdict.failed_checks if one.name.startswith(check))


def test_ranks_by_several_providers_are_all_named(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("kernels", altered(Kernels, rank=0, provider="none")))
    found = next(one for one in verdict.checks if one.name == "kernels: provider of kernels")
    assert found.measured == "interpreter and none"


def test_op_checks_that_crashed_are_an_error_and_no_failure(rig: Rig) -> None:
    dies = ends(Cause.CRASH, "Segmentation fault")
    verdict = rig.rerun(STAGE, within("ops-rmsnorm", dies))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert verdict.problem.what == "ops-rmsnorm: Segmentation fault"


def test_a_launch_that_recorded_no_kernels_fails_every_check_on_them(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("kernels", without(Kernels)))
    assert failing(verdict) == [
        "kernels: provider of kernels",
        "kernels: modules without their kernel",
        "kernels: launches of kernels",
    ]


def test_an_accepted_unsupported_compile_leaves_the_eager_layout(tmp_path: Path) -> None:
    plan = ladder_plan(tmp_path, f"accept_unsupported=[{COMPILE}]")
    rig = Rig(tmp_path, plan=plan)
    assert rig.walk() == 0
    context = rig.context(STAGE)
    passed = context.earlier[COMPILE]
    refused = passed.model_copy(update={"unsupported": "the backend refuses it"})
    context.earlier = {**context.earlier, COMPILE: refused}
    assert refused.outcome is Outcome.UNSUPPORTED
    (stage,) = FAMILY.members(plan)
    before = len(rig.launcher.requests)
    findings = stage.run(context)
    launched = [request.name for request in rig.launcher.requests[before:]]
    assert launched == [*OPS, "kernels", *EXPERTS]
    assert all(check.passed for check in findings.checks)


def test_pairs_are_launched_one_after_the_other_and_keep_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, plan=ladder_plan(tmp_path, "kernel_pairs=2"))
    slow = altered(Step, seconds={"total": 0.75})
    rig.spoil(within("kernels-with-1", slow), within("kernels-with-2", slow))
    assert rig.walk() == 0
    names = [request.name for request in rig.launcher.requests]
    place = names.index("kernels")
    timed = [f"kernels-{which}-{n}" for n in (1, 2) for which in ("without", "with")]
    assert names[place + 1 : place + 5] == timed
    specs = [
        RunSpec.model_validate_json((request.folder / "spec.json").read_bytes())
        for request in rig.launcher.requests[place + 1 : place + 3]
    ]
    assert [len(spec.kernels) for spec in specs] == [0, 2]
    assert {spec.capture for spec in specs} == {"none"}
    verdict = rig.verdict(STAGE)
    assert rested(verdict) >= set(timed)
    assert verdict.measures["kernels.pairs"] == 2.0
    assert verdict.measures["kernels.with_over_without"] == 1.5
    assert verdict.facts["kernels: speed"].startswith("slower: 1.500 to 1.500 times")


def test_an_entry_that_changes_makes_this_stage_stale_and_no_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path, plan=plan_with(tmp_path, "swiglu"))
    assert rig.walk() == 0
    rig.plan = plan_with(tmp_path, "swiglu", large=20.0)
    stale = {s.stage.id: s.freshness.reason for s in rig.gate.standings() if not s.opens}
    assert stale == {STAGE: "changed: plan"}


def test_the_sources_of_every_kernel_are_among_its_inputs(rig: Rig) -> None:
    inputs = rig.verdict(STAGE).inputs
    assert {f"external:trn_validate.kernels.{name}" for name in ("rmsnorm", "swiglu")} <= set(
        inputs
    )
    assert "external:trn_validate.kernels.opcheck.experts" in inputs
    assert "external:torchtitan.models.common.moe" in inputs


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_plan_bounds_the_dtype_that_the_mixture_of_experts_computes_in(path: Path) -> None:
    plan = plans.load(path)
    workload = experts_rung(plan).ladder.workload
    assert plan.limits.of(workload.compute_dtype) == plan.limits.float32


@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("cpu", "torchtitan.models.qwen3"),
        ("rehearsal", "torchtitan.models.qwen3"),
        ("trn2.3xlarge", "torchtitan_neuron.models.qwen3"),
    ],
)
def test_the_experts_are_of_the_torchtitan_that_the_plan_trains(target: str, module: str) -> None:
    plan = plans.load(ROOT / f"configs/{target}.yaml")
    assert experts_rung(plan).ladder.model.module == module
