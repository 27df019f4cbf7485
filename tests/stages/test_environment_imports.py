from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.environment_imports import modules, read, required
from tests.builders import ROOT
from tests.fake_training import (
    Defect,
    Launch,
    Rig,
    calm_host,
    cpu_plan,
    ends,
    failing,
    within,
)
from trn_validate import plan as plans
from trn_validate.launch import Cause
from trn_validate.verdict import Outcome

STAGE = "environment.imports"
MODULES = [
    "torch",
    "triton",
    "torchtitan.trainer",
    "spmd_types",
    "safetensors",
    "torchtitan.models.qwen3",
]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        rig = Rig(tmp_path_factory.mktemp("imports"))
        rig.walk(only="environment.device")
        yield rig


def answers(**changes: str) -> Defect:
    def apply(launch: Launch) -> None:
        assert launch.answer is not None
        launch.answer |= changes

    return apply


def silent(launch: Launch) -> None:
    launch.answer = None


def test_packages_that_import_pass_with_a_check_for_each(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert verdict.outcome is Outcome.PASSED
    assert [check.name for check in verdict.checks] == [
        *(f"import {module}" for module in MODULES),
        "placeholders from the wrong index",
        "torchtitan's device",
        "torchtitan's communication backend",
        "torchtitan's configuration",
    ]
    assert len(verdict.commands) == len(MODULES) + 1


def test_versions_and_places_of_the_packages_are_on_record(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("import-torch", answers(version="2.14.1")))
    assert verdict.versions["torch"] == "2.14.1"
    assert verdict.versions["torchtitan"] == "1.2.3"
    assert verdict.facts["origin of triton"] == "/site-packages/triton/__init__.py"
    assert verdict.measures["import_seconds.torch"] == 0.25


def test_every_module_is_imported_in_a_process_of_its_own(rig: Rig) -> None:
    del rig.launcher.requests[:]
    rig.rerun(STAGE)
    assert rig.launched() == [*(f"import-{module}" for module in MODULES), "detect"]
    folders = {request.folder for request in rig.launcher.requests}
    assert len(folders) == len(rig.launcher.requests)


def test_a_missing_triton_fails_by_its_own_check_and_the_remedy_is_named(rig: Rig) -> None:
    missing = "ModuleNotFoundError: No module named 'triton'"
    verdict = rig.rerun(STAGE, within("import-triton", answers(result=missing, version="absent")))
    assert failing(verdict) == ["import triton"]
    assert verdict.failed_checks[0].measured == missing
    assert "pip install triton" in verdict.failed_checks[0].detail
    assert verdict.problem is not None
    assert "import triton" in verdict.problem.what


@pytest.mark.parametrize("module", MODULES)
def test_a_process_that_leaves_no_answer_fails_the_import(rig: Rig, module: str) -> None:
    verdict = rig.rerun(STAGE, within(f"import-{module}", silent))
    assert failing(verdict) == [f"import {module}"]
    assert verdict.failed_checks[0].measured == "the process left no answer"


def test_an_import_that_hangs_fails(rig: Rig) -> None:
    def hangs(launch: Launch) -> None:
        ends(Cause.HANG, "nothing was written for 180 s")(launch)
        silent(launch)

    verdict = rig.rerun(STAGE, within("import-torch", hangs))
    assert failing(verdict) == ["import torch"]
    assert {command.cause for command in verdict.commands} == {"completed", "hang"}


def test_a_placeholder_from_the_wrong_index_fails(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        return "1.0.post1" if name == "torch-neuronx" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    verdict = rig.rerun(STAGE)
    assert failing(verdict) == ["placeholders from the wrong index"]
    assert verdict.failed_checks[0].detail.startswith("torch-neuronx 1.0.post1; install")


def test_torchtitan_that_would_silently_take_cuda_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("detect", answers(device="cuda", backend="nccl")))
    assert failing(verdict) == ["torchtitan's device", "torchtitan's communication backend"]
    assert [check.measured for check in verdict.failed_checks] == ["cuda", "nccl"]


@pytest.mark.parametrize("generation", ["samples", "tokens"])
def test_both_generations_that_are_configured_in_python_pass(rig: Rig, generation: str) -> None:
    verdict = rig.rerun(STAGE, within("detect", answers(generation=generation)))
    assert verdict.outcome is Outcome.PASSED
    assert verdict.checks[-1].measured == generation


@pytest.mark.parametrize("generation", ["TOML", "other"])
def test_a_generation_that_cannot_be_driven_fails_by_its_own_check(
    rig: Rig, generation: str
) -> None:
    verdict = rig.rerun(STAGE, within("detect", answers(generation=generation)))
    assert failing(verdict) == ["torchtitan's configuration"]
    assert verdict.failed_checks[0].detail.startswith(f"configured by {generation}; install")


def test_another_communication_backend_fails_by_its_own_check(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("detect", answers(backend="mpi")))
    assert failing(verdict) == ["torchtitan's communication backend"]


def test_a_question_that_torchtitan_does_not_answer_fails_all_three(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("detect", silent), within("detect", ends(Cause.CRASH)))
    assert failing(verdict) == [
        "torchtitan's device",
        "torchtitan's communication backend",
        "torchtitan's configuration",
    ]
    assert [check.measured for check in verdict.failed_checks] == ["none", "none", "not driven"]
    assert [check.detail for check in verdict.failed_checks[:2]] == ["it broke"] * 2


def test_a_neuron_plan_asks_for_the_vendor_s_package_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm_host(monkeypatch)
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    assert required(plan)["torch_neuronx"] == "torch-neuronx"
    assert required(plan)["torchtitan_neuron.models.qwen3"] == "torchtitan-neuron"
    assert "torch_neuronx" not in required(cpu_plan())
    rig = Rig(tmp_path, plan=plan)
    stage = next(stage for stage in rig.gate.stages if stage.id == STAGE)
    assert "import torch_neuronx" in stage.run(rig.context(STAGE)).expects


def test_two_ladders_of_one_module_ask_for_it_once() -> None:
    assert modules(plans.load(ROOT / "configs/trn2.48xlarge.yaml")) == [
        "torchtitan_neuron.models.qwen3"
    ]


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"text"', "null"])
def test_an_answer_that_is_no_mapping_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "answer.json"
    file.write_text(text)
    assert read(file) == {}
    assert read(tmp_path / "absent.json") == {}
