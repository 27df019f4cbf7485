from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import ROOT
from tests.fake_training import Rig
from tests.neuron.machine import Machine, recorded
from trn_validate import plan as plans
from trn_validate.launch import Cause, FakeLauncher, LaunchRequest, LaunchResult
from trn_validate.neuron import freed as module
from trn_validate.neuron.freed import CAUSE, Freed, look
from trn_validate.stage import Unmeasured


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "host", kind="trn2.3xlarge").build()
    made.install()
    return made


def request(name: str = "reference") -> LaunchRequest:
    return LaunchRequest(
        name=name, argv=("true",), folder=Path("/nowhere"), wall_seconds=1, silence_seconds=1
    )


def result(cause: Cause = Cause.COMPLETED, what: str = "") -> LaunchResult:
    return LaunchResult(
        name="reference", argv=("true",), cause=cause, exit_status=0, seconds=0.1, what=what
    )


def freed(machine: Machine, act: Any = lambda: None, **ends: Any) -> tuple[Freed, FakeLauncher]:
    def handler(asked: LaunchRequest) -> LaunchResult:
        act()
        return result(**ends)

    inner = FakeLauncher(handler)
    return Freed(inner, machine.root, seconds=0.0), inner


def holds(machine: Machine) -> None:
    machine.opens(4711, 0, "python", "train.py")


def test_a_launch_that_lets_go_of_its_cores_is_given_as_it_is(machine: Machine) -> None:
    launcher, inner = freed(machine)
    assert launcher.launch(request()) == result()
    assert len(inner.requests) == 1


def test_a_core_that_is_held_after_a_launch_is_told_with_its_process(machine: Machine) -> None:
    launcher, _ = freed(machine, lambda: holds(machine))
    with pytest.raises(Unmeasured) as caught:
        launcher.launch(request())
    problem = caught.value.problem
    assert problem.cause == CAUSE == "cores_held"
    assert problem.what.startswith("after reference: pid 4711 (python train.py) holds device 0")
    assert "kill 4711" in problem.what


def test_a_core_that_is_held_before_a_launch_keeps_it_from_starting(machine: Machine) -> None:
    holds(machine)
    launcher, inner = freed(machine)
    with pytest.raises(Unmeasured, match="before reference: pid 4711"):
        launcher.launch(request())
    assert inner.requests == []


def test_a_core_that_only_neuron_ls_sees_held_counts_too(machine: Machine) -> None:
    machine.says("neuron-ls -j", recorded("neuron-ls.trn2.48xlarge.busy.json"))
    machine.install()
    assert look(machine.root)
    launcher, _ = freed(machine)
    with pytest.raises(Unmeasured, match="before reference"):
        launcher.launch(request())


def test_proc_is_enough_where_neuron_ls_does_not_answer(machine: Machine) -> None:
    (machine.root / "opt/aws/neuron/bin/neuron-ls").unlink()
    assert look(machine.root) == ()
    holds(machine)
    assert [holder.pid for holder in look(machine.root)] == [4711]


def test_the_vendor_s_own_tools_hold_nothing(machine: Machine) -> None:
    machine.opens(4712, 0, "/opt/aws/neuron/bin/neuron-monitor")
    launcher, _ = freed(machine)
    assert launcher.launch(request()) == result()


def test_how_a_launch_failed_goes_before_what_it_left(machine: Machine) -> None:
    launcher, _ = freed(machine, lambda: holds(machine), cause=Cause.CRASH, what="rank 3 died")
    ended = launcher.launch(request())
    assert ended.cause is Cause.CRASH
    assert ended.what.startswith("rank 3 died; pid 4711 (python train.py) holds device 0")


def test_a_core_that_is_freed_a_moment_later_is_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds(machine)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        shutil.rmtree(machine.root / "proc/4711", ignore_errors=True)

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", clock)
    launcher = Freed(freed(machine)[1], machine.root, seconds=30.0)
    assert launcher.launch(request()) == result()
    assert slept == [0.5]


def test_two_launches_never_run_at_once_on_the_device(machine: Machine) -> None:
    """Both would take the core of LOCAL_RANK 0."""
    running: list[str] = []

    class Together(FakeLauncher):
        def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
            assert len(requests) == 1
            return super().together(requests)

    def handler(asked: LaunchRequest) -> LaunchResult:
        running.append(asked.name)
        return result()

    launcher = Freed(Together(handler), machine.root, seconds=0.0)
    assert len(launcher.together((request("rerun"), request("control")))) == 2
    assert running == ["rerun", "control"]


def test_every_stage_of_a_neuron_plan_launches_through_it_and_none_of_the_cpu_s(
    machine: Machine, tmp_path: Path
) -> None:
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    made = Rig(tmp_path / "neuron", plan=plan, choice=machine.choice)
    attempt = made.run.new_attempt("environment.imports")
    launcher = made.executor._context(attempt, ()).launcher
    assert isinstance(launcher, Freed)
    assert (launcher.inner, launcher.root) == (made.launcher, machine.root)
    cpu = Rig(tmp_path / "cpu")
    attempt = cpu.run.new_attempt("environment.imports")
    assert cpu.executor._context(attempt, ()).launcher is cpu.launcher
