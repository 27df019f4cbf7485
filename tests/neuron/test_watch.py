from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ROOT
from tests.fake_training import Defect, Launch, Rig, calm_host, ends, failing
from tests.neuron.machine import Machine, put, recorded
from trn_validate import plan as plans
from trn_validate.launch import Cause
from trn_validate.neuron.counters import CHECKS, EXECUTIONS, FAILED, HARDWARE, NUMERICAL
from trn_validate.neuron.watch import Watch, watched
from trn_validate.stage import Context, Findings
from trn_validate.verdict import Execution, Outcome, Verdict

STAGE = "baseline.eager"


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    calm_host(monkeypatch)


def counts(machine: Machine, **statuses: int) -> Defect:
    """Every launch of ranks is seen by the driver."""

    def apply(launch: Launch) -> None:
        if launch.computes:
            for name, number in (statuses or {"success": 5}).items():
                file = machine.device(0) / f"neuron_core0/stats/status/{name}/total"
                machine.count(0, 0, name, int(file.read_text()) + number)

    return apply


def verdict(
    machine: Machine, *defects: Defect, damage: Callable[[], object] = lambda: None
) -> Verdict:
    """What the first stage that trains says on this machine, damaged before it."""
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    rig = Rig(machine.root.parent, counts(machine), plan=plan, choice=machine.install())
    for stage in ("device", "imports", "collectives", "ops"):
        rig.walk(only=f"environment.{stage}")
    damage()
    rig.spoil(*defects)
    rig.walk(only=STAGE)
    return rig.verdict(STAGE)


def record(pid: int, **counts: int) -> str:
    """A line of neuron-monitor."""
    value: dict[str, Any] = json.loads(recorded("neuron-monitor.trn2.48xlarge.json"))
    runtime = value["neuron_runtime_data"][0]
    runtime["pid"] = pid
    runtime["report"]["execution_stats"]["execution_summary"].update(counts)
    return json.dumps(value) + "\n"


def streams(machine: Machine, *lines: str) -> None:
    """Let neuron-monitor print these records and go on."""
    answer = put(machine.root / "records.txt", "".join(lines))
    tool = put(
        machine.root / "opt/aws/neuron/bin/neuron-monitor",
        f"#!/bin/sh\ncat {answer}; echo $$ >{machine.root}/printed; sleep 60\n",
    )
    tool.chmod(0o755)


def wait(file: Path) -> None:
    """Until something is in it."""
    until = time.monotonic() + 10
    while not (file.exists() and file.read_text()) and time.monotonic() < until:
        time.sleep(0.01)


def test_a_stage_that_ran_on_the_device_owes_the_counts_and_passes(small: Machine) -> None:
    found = verdict(small, counts(small))
    assert found.outcome is Outcome.PASSED
    assert found.expects[-len(CHECKS) :] == CHECKS
    assert found.execution is not None
    before, after = found.execution.before, found.execution.after
    assert before is not None and before > 14, "an earlier stage ran on the device too"
    assert after == before + 5 * 5


def test_a_stage_of_which_the_device_counted_nothing_fails(small: Machine) -> None:
    found = verdict(small)
    assert failing(found) == [EXECUTIONS]
    assert found.problem is not None
    assert EXECUTIONS in found.problem.what


@pytest.mark.parametrize(
    ("status", "check"),
    [
        ("execute_completed_with_num_error", NUMERICAL),
        ("hw_error", HARDWARE),
        ("timeout", FAILED),
    ],
)
def test_an_error_that_the_device_counted_fails_whatever_the_ranks_say(
    small: Machine, status: str, check: str
) -> None:
    assert failing(verdict(small, counts(small, success=5, **{status: 1}))) == [check]


def test_a_device_that_cannot_be_counted_is_an_error_and_no_pass(small: Machine) -> None:
    def uncountable() -> None:
        for core in (0, 1):
            shutil.rmtree(small.device(0) / f"neuron_core{core}")

    found = verdict(small, damage=uncountable)
    assert found.outcome is Outcome.ERROR
    assert found.missing == CHECKS
    assert found.problem is not None
    assert (found.problem.cause, found.execution) == ("uncounted", None)
    assert "neither sysfs nor neuron-monitor" in found.problem.what


def test_a_driver_that_was_loaded_again_is_an_error(small: Machine) -> None:
    def reloaded(launch: Launch) -> None:
        if launch.spec is not None:
            small.count(0, 0, "success", 0)

    found = verdict(small, reloaded)
    assert found.outcome is Outcome.ERROR
    assert found.problem is not None
    assert "went back" in found.problem.what


def test_a_launch_that_crashed_shows_what_the_device_counted(small: Machine) -> None:
    found = verdict(small, counts(small, success=1, hw_error=2), ends(Cause.CRASH, "it broke"))
    assert found.outcome is Outcome.ERROR
    assert found.problem is not None
    assert found.problem.cause == "crash"
    assert found.problem.what.endswith("it broke; sysfs counted 0.0.hw_error: 2")


def test_a_stage_that_is_run_before_the_imports_names_no_package(small: Machine) -> None:
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    rig = Rig(small.root.parent, plan=plan, choice=small.install())

    def run(context: Context) -> Findings:
        small.count(0, 0, "success", 99)
        return Findings(expects=("x",), device="neuron")

    found = watched(run, rig.context(STAGE))
    assert found.execution == Execution(distribution="", before=14, after=106)
    assert found.expects == ("x", *CHECKS)


def test_a_crash_of_a_device_that_counted_nothing_is_told_as_it_is(small: Machine) -> None:
    found = verdict(small, ends(Cause.CRASH, "it broke"))
    assert found.problem is not None
    assert found.problem.what.endswith("it broke")


def test_a_defect_of_the_watch_itself_still_leaves_a_verdict(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Watch) -> Watch:
        raise RuntimeError("a defect")

    rig = Rig(
        small.root.parent,
        plan=plans.load(ROOT / "configs/trn2.3xlarge.yaml"),
        choice=small.install(),
    )
    rig.walk(only="environment.device")
    monkeypatch.setattr(Watch, "__enter__", broken)
    found = rig.rerun("environment.imports")
    assert found.outcome is Outcome.ERROR
    assert found.problem is not None
    assert (found.problem.cause, "a defect" in found.problem.what) == ("internal", True)


def test_a_stage_without_tensors_on_the_device_owes_no_counts(small: Machine) -> None:
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    rig = Rig(small.root.parent, plan=plan, choice=small.install())
    rig.walk(only="environment.device")
    assert not {*CHECKS} & {*rig.rerun("environment.imports").expects}


def test_the_records_of_the_ranks_are_summed_and_of_no_other_process(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    streams(machine, record(1, completed=5), record(2, completed=7), record(1, completed=6))
    with Watch(tmp_path) as watch:
        wait(tmp_path / "printed")
    (ran,) = watch.ran([1])
    assert (ran.source, ran.after) == ("neuron-monitor", 11)
    assert watch.stream.findings() == ()


def test_the_tool_is_ended_with_the_watch_and_its_cut_record_is_no_noise(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    streams(machine, record(1, completed=5), record(1)[:300])
    with Watch(tmp_path) as watch:
        wait(tmp_path / "printed")
    assert (watch.stream.records, watch.stream.findings()) == (1, ())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "printed").read_text()), 0)


def test_without_the_tool_the_driver_s_counters_are_enough(small: Machine) -> None:
    small.loses("neuron-monitor")
    small.install()
    with Watch(small.root) as watch:
        small.count(0, 0, "success", 12)
    (ran,) = watch.ran([])
    assert (ran.source, ran.before, ran.after) == ("sysfs", 14, 19)


def test_a_crash_where_nothing_can_be_counted_is_told_as_it_is(small: Machine) -> None:
    def uncounted() -> None:
        for core in (0, 1):
            shutil.rmtree(small.device(0) / f"neuron_core{core}")

    found = verdict(small, ends(Cause.CRASH, "it broke"), damage=uncounted)
    assert found.problem is not None
    assert found.problem.what.endswith("it broke")
