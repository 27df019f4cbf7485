"""What kernels.compile launches, holds against what, and which check says no to which defect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages import stages_of
from stages.kernels_compile import FAMILY, targets
from tests.builders import load_plan
from tests.fake_training import (
    Defect,
    Rig,
    altered,
    bent,
    failing,
    ladder_plan,
    raw_ladder_plan,
    within,
    without,
)
from trn_validate.config import Plan
from trn_validate.records import Compilation, Step
from trn_validate.stage import Place
from trn_validate.verdict import Outcome

STAGE = "kernels.compile"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A run in which every stage passed."""
    rig = Rig(tmp_path_factory.mktemp("compile"))
    assert rig.walk() == 0
    return rig


def neuron_plan(folder: Path, *, attention: str = "dense_mask") -> Plan:
    """The ladder of the CPU, compiled by a backend that refuses FlexAttention."""
    raw = json.loads(json.dumps(raw_ladder_plan()))
    raw["profile"]["compile_backend"] = "neuron"
    raw["paths"]["native"]["ladders"][0]["workload"]["attention"] = attention
    folder.mkdir(parents=True, exist_ok=True)
    return load_plan(folder, raw=raw)


def names(plan: Plan) -> list[str]:
    (stage,) = FAMILY.members(plan)
    place = Place(plan=plan, private=Path("private"), seed=Path("seed"))
    return [request.name for request in stage.launches(place)]


def test_one_process_comes_first_then_the_last_rung_that_shards_and_splits(tmp_path: Path) -> None:
    plan = ladder_plan(tmp_path)
    assert [name for name, _ in targets(plan)] == ["compiled-baseline", "compiled-tp"]
    assert names(plan) == ["compiled-baseline", "compiled-tp"]
    assert stages_of(plan)[-2].id == STAGE


def test_a_backend_that_refuses_the_attention_gets_an_eager_twin_first(tmp_path: Path) -> None:
    plan = neuron_plan(tmp_path)
    assert names(plan) == ["eager-baseline", "compiled-baseline", "eager-tp", "compiled-tp"]
    assert names(neuron_plan(tmp_path, attention="causal")) == ["compiled-baseline", "compiled-tp"]


def test_a_healthy_run_passes_and_says_what_it_was_held_against(rig: Rig) -> None:
    verdict = rig.verdict(STAGE)
    assert verdict.outcome is Outcome.PASSED
    first, second = verdict.compared
    assert (first.reference.attempt, first.candidate.name) == (
        "baseline.eager/1",
        "compiled-baseline",
    )
    assert second.reference.attempt == "parallelism.tp/1"
    assert second.candidate.layout.endswith("compiled by inductor")
    assert verdict.measures["compiled-tp.compile_seconds"] == 9.0
    assert verdict.measures["compiled-tp.compiled_over_eager"] == 1.0
    paths = {artifact.path.split("/")[2] for artifact in verdict.artifacts}
    assert paths == {"compiled-baseline", "compiled-tp", "distances.json", "observed.json"}


def test_the_state_of_the_compilers_cache_stands_beside_its_seconds(rig: Rig) -> None:
    verdict = rig.verdict(STAGE)
    for name, _ in targets(rig.plan):
        assert "files before" in verdict.facts[f"{name}: compile cache"]
        before = verdict.measures[f"{name}.cache_files_before"]
        assert f" {before:.0f} files before" in verdict.facts[f"{name}: compile cache"]


def test_a_twin_is_held_against_the_rung_and_the_compiled_run_against_the_twin(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, plan=neuron_plan(tmp_path))
    assert rig.walk() == 0
    pairs = [(p.reference.name, p.candidate.name) for p in rig.verdict(STAGE).compared]
    assert pairs == [
        ("reference", "eager-baseline"),
        ("eager-baseline", "compiled-baseline"),
        ("tp", "eager-tp"),
        ("eager-tp", "compiled-tp"),
    ]


@pytest.mark.parametrize(
    ("defect", "check", "detail"),
    [
        (altered(Compilation, blocks=1, rank=2), "compiled blocks", "of 4"),
        (
            altered(Compilation, compiled_calls=17, rank=2),
            "calls that ran compiled code",
            "of 4",
        ),
        (
            altered(Compilation, rank=1, eager=("step 3: layers.0: 1 of 1 calls ran eagerly",)),
            "regions that ran eagerly",
            "rank 1, step 3: layers.0",
        ),
        (
            altered(Compilation, rank=0, refused=("step 1: layers.1: recompile limit",)),
            "frames that were given up",
            "recompile limit",
        ),
        (
            altered(Compilation, rank=3, breaks=("call to print",)),
            "graph breaks",
            "rank 3, call to print",
        ),
        (
            altered(Compilation, recompiles=("step 4: layers.0: size mismatch at index 0",)),
            "compilations after step 1",
            "step 4: layers.0: size mismatch",
        ),
        (altered(Step, step=6, rank=2, shapes=((1, 256),)), "input shapes", "on rank 2 at step 6"),
        (bent("gradient", lambda a: a * 2), "gradient of step 1", "a constant factor of 2"),
        (altered(Step, step=4, loss=7.6), "loss against the reference", "at step 4"),
    ],
)
def test_a_fault_fails_the_check_meant_for_it(
    rig: Rig, defect: Defect, check: str, detail: str
) -> None:
    verdict = rig.rerun(STAGE, within("compiled-tp", defect))
    assert failing(verdict) == [f"compiled-tp: {check}"]
    assert detail in verdict.failed_checks[0].detail


def test_a_launch_that_recorded_no_compilation_fails_every_check_on_it(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("compiled-baseline", without(Compilation)))
    said_no = failing(verdict)
    assert [name.partition(": ")[2] for name in said_no] == [
        "compiled blocks",
        "calls that ran compiled code",
        "regions that ran eagerly",
        "frames that were given up",
        "graph breaks",
        "compilations after step 1",
    ]


def test_a_twin_that_trains_otherwise_is_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, plan=neuron_plan(tmp_path))
    rig.walk()
    verdict = rig.rerun(STAGE, within("eager-tp", altered(Step, step=2, rows="0" * 32)))
    assert "eager-tp: steps with other rows" in failing(verdict)
