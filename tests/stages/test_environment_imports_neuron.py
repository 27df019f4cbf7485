from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages import environment_imports
from tests.builders import ROOT
from tests.fake_training import Defect, Launch, Rig, calm_host, ends, failing, within
from tests.neuron.machine import Machine
from trn_validate import plan as plans
from trn_validate.gate import FAILED
from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.neuron import imports
from trn_validate.neuron.imports import AUTOLOAD, CHECKS, LINEAGE, VARIABLES, VERSIONS
from trn_validate.verdict import Outcome

STAGE = "environment.imports"
LOADED, BARE = environment_imports.LOADED, environment_imports.BARE
VENDOR = {
    "torch": "2.14.0",
    "torch-neuronx": "2.14.3.0.1",
    "neuronx-cc": "2.28.7631.0",
    "nki": "0.7.0",
    "pip": "26.0",
}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A small Trn2 whose environment.device has passed, with a whole installation."""
    calm_host(monkeypatch)
    monkeypatch.setattr(imports, "installed", lambda: dict(VENDOR))
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/venv/bin/{name}")
    monkeypatch.setenv("NKI_ENABLE_TRACE_CACHE", "0")
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    machine = Machine(tmp_path / "host", kind="trn2.3xlarge").build()
    made = Rig(tmp_path, plan=plan, choice=machine.install())
    made.walk(only="environment.device")
    yield made


def answers(name: str, **changes: Any) -> Defect:
    def apply(launch: Launch) -> None:
        assert launch.answer is not None
        launch.answer |= changes

    return within(name, apply)


def died(launch: Launch) -> None:
    ends(Cause.CRASH, "it broke")(launch)
    launch.answer = None


def test_a_whole_installation_passes_and_tells_what_executes(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert verdict.outcome is Outcome.PASSED
    assert {*CHECKS} <= {check.name for check in verdict.checks}
    assert verdict.execution is not None
    assert verdict.execution.distribution == "torch-neuronx 2.14.3.0.1"
    assert verdict.facts["lineage"] == "native"
    assert verdict.facts["neuron release"].startswith("2.33 (by torch-neuronx, neuronx-cc, nki")
    assert verdict.facts["variables set by import torch"] == "NEURON_RT_DBG_ZEROCOPY=1"


BLOCKING = "NEURON_LAUNCH_BLOCKING"


def test_what_only_a_first_import_tells_is_a_fact(rig: Rig) -> None:
    first = answers(
        LOADED,
        attribute_version="0.1.0",
        before={"NEURON_RT_NUM_CORES": "4"},
        after={BLOCKING: "1", "NEURON_RT_NUM_CORES": "4"},
    )
    facts = rig.rerun(STAGE, first).facts
    assert facts["torch_neuronx.__version__"] == "0.1.0"
    assert facts["attributes of torch_neuronx"] == "nki_op, get_fallback_ops"
    assert facts["NEURON_RT_NUM_CORES"] == "4"
    assert facts[f"default {BLOCKING}"] == "1"
    assert facts["default TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"] == "unset"


def test_a_variable_that_was_given_hides_its_default(rig: Rig) -> None:
    facts = rig.rerun(STAGE, answers(LOADED, before={BLOCKING: "1"}, after={BLOCKING: "1"})).facts
    assert f"default {BLOCKING}" not in facts
    assert facts["NEURON_RT_NUM_CORES"] == "unset"


def test_another_lineage_tells_nothing_of_the_native_one(rig: Rig) -> None:
    facts = rig.rerun(
        STAGE, answers(LOADED, privateuse1="privateuseone", modules=["torch_neuronx.xla_impl"])
    ).facts
    assert facts["lineage"] == "legacy XLA"
    assert "torch_neuronx.__version__" not in facts


def test_the_flavours_of_the_plan_s_model_are_a_fact(rig: Rig) -> None:
    module = "torchtitan_neuron.models.qwen3"
    facts = rig.rerun(STAGE, answers(f"import-{module}", flavors="0.6B, 30B-A3B")).facts
    assert facts[f"flavors of {module}"] == "0.6B, 30B-A3B"
    assert [key for key in facts if key.startswith("flavors of ")] == [f"flavors of {module}"]


def test_no_two_processes_load_a_backend_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    together = rig.launcher.together

    def counted(requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        widths.append(len(requests))
        return together(requests)

    monkeypatch.setattr(rig.launcher, "together", counted)
    rig.rerun(STAGE)
    assert {*widths} == {1}


def test_what_a_rank_imports_after_torch_is_probed_after_torch(rig: Rig) -> None:
    del rig.launcher.requests[:]
    rig.rerun(STAGE)
    imports = {r.name: r.argv[4:-1] for r in rig.launcher.requests if r.name.startswith("import-")}
    alone = {name for name, modules in imports.items() if len(modules) == 1}
    assert alone == {f"import-{one}" for one in ("torch", "torch_neuronx", "triton", "safetensors")}
    after = {name: modules for name, modules in imports.items() if name not in alone}
    model = "torchtitan_neuron.models.qwen3"
    assert after == {
        f"import-{one}": ("torch", one) for one in ("torchtitan.trainer", "spmd_types", model)
    }


def test_only_the_second_probe_has_autoload_off(rig: Rig) -> None:
    del rig.launcher.requests[:]
    rig.rerun(STAGE)
    env = {request.name: dict(request.env) for request in rig.launcher.requests}
    assert env[LOADED] == {}
    assert env[BARE] == {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def test_a_broken_autoload_blocks_every_later_stage_and_names_its_cause(rig: Rig) -> None:
    why = "RuntimeError: Failed to load the backend extension <- OSError: libnrt.so.1"
    rig.spoil(answers(LOADED, result=why), answers("import-torch", result=why))
    assert rig.walk() == FAILED
    verdict = rig.verdict(STAGE)
    assert verdict.outcome is Outcome.FAILED
    assert {check.name for check in verdict.failed_checks} == {"import torch", AUTOLOAD}
    assert verdict.missing == (LINEAGE,)
    assert verdict.problem is not None
    assert "OSError: libnrt.so.1" in verdict.problem.what
    later = [rig.verdict(stage.id) for stage in rig.gate.stages[2:]]
    assert {one.blocked_by for one in later} == {STAGE}


@pytest.mark.parametrize("name", [LOADED, BARE])
def test_a_probe_that_leaves_no_answer_fails(rig: Rig, name: str) -> None:
    verdict = rig.rerun(STAGE, within(name, died))
    assert [check.name for check in verdict.failed_checks] == [AUTOLOAD]
    assert "probe_left_no_answer" in verdict.failed_checks[0].detail


def test_the_legacy_lineage_fails_by_its_own_check(rig: Rig) -> None:
    legacy = answers(LOADED, privateuse1="privateuseone", modules=["torch_neuronx.xla_impl"])
    verdict = rig.rerun(STAGE, legacy)
    assert failing(verdict) == [LINEAGE]
    assert "legacy XLA executes" in verdict.failed_checks[0].detail
    assert verdict.execution is None


def test_a_torch_of_another_release_fails_by_the_versions(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "installed", lambda: VENDOR | {"torch": "2.13.1"})
    verdict = rig.rerun(STAGE)
    assert failing(verdict) == [VERSIONS]
    assert "torch_mismatch" in verdict.failed_checks[0].detail
    assert "torch is 2.13.1, and torch-neuronx 2.14.3.0.1" in verdict.failed_checks[0].detail


def test_a_driver_of_another_release_is_on_record_and_fails_nothing(rig: Rig) -> None:
    driver = Path(rig.choice.signs.host_root) / "sys/module/neuron/version"
    driver.write_text("2.30.2.0\n")
    verdict = rig.rerun(STAGE)
    assert verdict.outcome is Outcome.PASSED
    assert "aws-neuronx-dkms 2.30.2.0 (release 2.32)" in verdict.facts["warning release_mixed"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("NEURON_RT_VISIBLE_CORES", ""), ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1")],
)
def test_a_dangerous_variable_of_the_environment_fails(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    after = answers(LOADED, after={name: value})
    verdict = rig.rerun(STAGE, after)
    assert failing(verdict) == [VARIABLES]
    assert name in verdict.failed_checks[0].detail
