from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from stages import environment_device
from stages.environment_device import available_gib, world_sizes
from tests.builders import ROOT
from tests.fake_training import NO_SIGNS, Rig, calm_host, cpu_plan, failing, ladder_plan
from trn_validate import plan as plans
from trn_validate.gate import ABSENT, FAILED, PASSED
from trn_validate.processes import Stray
from trn_validate.target import Choice, Signs, choose
from trn_validate.verdict import Outcome

STAGE = "environment.device"
HOST_CHECKS = [
    "usable cores",
    "memory for the widest rung",
    "free disk",
    "open files",
    "stray ranks",
]


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    calm_host(monkeypatch)


def neuron_rig(folder: Path, choice: Choice) -> Rig:
    return Rig(folder, plan=plans.load(ROOT / "configs/trn2.48xlarge.yaml"), choice=choice)


def test_a_host_that_has_enough_passes_with_every_check(tmp_path: Path) -> None:
    rig = Rig(tmp_path, plan=cpu_plan())
    assert rig.walk(only=STAGE) == PASSED
    verdict = rig.verdict(STAGE)
    assert [check.name for check in verdict.checks] == ["C++ compiler", *HOST_CHECKS]
    assert verdict.outcome is Outcome.PASSED
    assert not rig.launched()


def test_the_signs_and_the_reason_of_the_choice_are_on_record(tmp_path: Path) -> None:
    facts = Rig(tmp_path).rerun(STAGE).facts
    assert facts["signs"].startswith("PCI functions: none")
    assert "no sign of a Neuron device" in facts["chosen"]


def test_too_little_memory_for_all_ranks_of_the_widest_rung_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_device, "available_gib", lambda: 5.99)
    verdict = Rig(tmp_path).rerun(STAGE)
    assert failing(verdict) == ["memory for the widest rung"]
    (check,) = verdict.failed_checks
    assert (check.measured, check.limit, check.unit) == (5.99, 6.0, "GiB")
    assert check.detail == "4 ranks"


def test_just_enough_memory_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_device, "available_gib", lambda: 6.0)
    assert Rig(tmp_path).walk(only=STAGE) == PASSED


def test_the_rungs_of_every_ladder_count() -> None:
    assert world_sizes(plans.load(ROOT / "configs/trn2.48xlarge.yaml")) == (1, 4, 16, 32, 64)
    assert world_sizes(cpu_plan()) == (1, 2, 4)


def test_too_little_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    assert failing(Rig(tmp_path).rerun(STAGE)) == ["free disk"]


def test_too_few_open_files_fail_and_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    verdict = Rig(tmp_path).rerun(STAGE)
    assert failing(verdict) == ["open files"]
    assert "ulimit -n" in verdict.failed_checks[0].detail


def test_unlimited_open_files_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: unlimited)
    assert Rig(tmp_path).walk(only=STAGE) == PASSED


def test_a_host_without_usable_cores_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set())
    assert failing(Rig(tmp_path).rerun(STAGE)) == ["usable cores"]


def test_ranks_that_a_killed_run_left_fail_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strays = [Stray(4711, "launch", ("python", "-m", "trn_validate.workload"))]
    monkeypatch.setattr(environment_device, "find_strays", lambda: strays)
    verdict = Rig(tmp_path).rerun(STAGE)
    assert failing(verdict) == ["stray ranks"]
    detail = verdict.failed_checks[0].detail
    assert "pid 4711: python -m trn_validate.workload" in detail
    assert "kill" in detail


def test_a_trn2_by_name_that_shows_no_device_is_broken_and_not_absent(tmp_path: Path) -> None:
    named = choose(Signs(host_root=str(tmp_path / "host"), product_name="trn2.48xlarge"))
    rig = neuron_rig(tmp_path, named)
    assert rig.walk() == FAILED
    failed = failing(rig.verdict(STAGE))
    assert failed == [
        "PCI functions of a Trn2",
        "device nodes",
        "driver and kernel module",
        "neuron-ls",
    ]


def test_a_host_without_any_sign_lacks_the_device_and_everything_else_is_blocked(
    tmp_path: Path,
) -> None:
    rig = neuron_rig(tmp_path, NO_SIGNS)
    assert rig.walk() == ABSENT
    verdict = rig.verdict(STAGE)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.problem is not None
    assert verdict.problem.cause == "device_absent"
    assert "needs 16 Trn2 devices" in verdict.problem.what
    assert "PCI functions: none" in verdict.problem.what
    others = [rig.verdict(stage.id) for stage in rig.gate.stages[1:]]
    assert {other.blocked_by for other in others} == {STAGE}
    assert not rig.launched()


def test_the_profile_makes_the_verdict_stale_and_a_limit_does_not(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk(only=STAGE)
    rig.plan = ladder_plan(tmp_path, "limits.loss_fall=0.03")
    assert rig.standing(STAGE).freshness.fresh
    rig.plan = ladder_plan(tmp_path, "profile.disk_gib=1.0")
    assert rig.standing(STAGE).freshness.reason == "changed: plan"


def control_group(folder: Path, *, limit: str, used: int, cached: int = 0) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 7\n")
    return folder


def test_the_control_group_bounds_the_memory(tmp_path: Path) -> None:
    group = control_group(tmp_path, limit=str(2**30), used=2**29)
    assert available_gib(group) == 0.5


def test_files_that_were_read_are_memory_that_can_be_had(tmp_path: Path) -> None:
    group = control_group(tmp_path, limit=str(2**30), used=2**30, cached=2**28)
    assert available_gib(group) == 0.25


@pytest.mark.parametrize("limit", ["max", "no number", str(2**60)])
def test_a_control_group_without_a_lower_limit_bounds_nothing(tmp_path: Path, limit: str) -> None:
    without = available_gib(tmp_path / "no group")
    group = control_group(tmp_path, limit=limit, used=2**40)
    assert available_gib(group) == pytest.approx(without, rel=0.2)
    assert without > 0


def test_a_host_without_a_compiler_fails_and_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    verdict = Rig(tmp_path).rerun(STAGE)
    assert failing(verdict) == ["C++ compiler"]
    assert "install g++" in verdict.failed_checks[0].detail
