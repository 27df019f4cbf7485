from __future__ import annotations

import shutil

import pytest

from tests.neuron.machine import Machine, put
from trn_validate.check import Check
from trn_validate.errors import MeasurementError
from trn_validate.neuron.counters import (
    CHECKS,
    EXECUTIONS,
    FAILED,
    HARDWARE,
    NUMERICAL,
    Ran,
    Snapshot,
    between,
    judge,
    snapshot,
    summed,
    what_ran,
)
from trn_validate.neuron.stream import Tally


@pytest.fixture
def machine(small: Machine) -> Machine:
    """One device is enough, and is written sixteen times as fast."""
    return small


def shot(machine: Machine) -> Snapshot:
    taken = snapshot(machine.root)
    assert taken is not None
    return taken


def failing(ran: Ran) -> list[str]:
    return [check.name for check in judge((ran,)) if not check.passed]


def tally(pid: int = 1, errors: dict[str, int] | None = None, **executions: int) -> Tally:
    return Tally(pid, executions=executions, errors=errors or {}, periods=1)


def test_executions_that_grew_without_an_error_pass(machine: Machine) -> None:
    before = shot(machine)
    machine.count(0, 1, "success", 9)
    ran = between(before, shot(machine))
    assert (ran.source, ran.after - ran.before, ran.errors) == ("sysfs", 2, {})
    assert before.successes == 2 * 7
    assert [check.name for check in judge((ran,))] == list(CHECKS)
    assert failing(ran) == []


def test_a_device_that_did_not_run_fails(machine: Machine) -> None:
    assert failing(between(shot(machine), shot(machine))) == [EXECUTIONS]


@pytest.mark.parametrize(
    ("status", "check"),
    [
        ("execute_completed_with_num_error", NUMERICAL),
        ("hw_error", HARDWARE),
        ("hw_nc_ue_error", HARDWARE),
        ("timeout", FAILED),
        ("generic_error", FAILED),
        ("execute_completed_with_error", FAILED),
    ],
)
def test_an_error_of_each_kind_fails_by_its_check_and_names_the_core(
    machine: Machine, status: str, check: str
) -> None:
    before = shot(machine)
    machine.count(0, 1, "success", 9)
    machine.count(0, 0, status, 4)
    checks = judge((between(before, shot(machine)),))
    (failed,) = (one for one in checks if not one.passed)
    assert (failed.name, failed.measured) == (check, 4)
    assert failed.detail == f"0.0.{status}: 4"


def test_errors_from_before_the_launch_are_not_its_own(machine: Machine) -> None:
    machine.count(0, 0, "hw_error", 4)
    before = shot(machine)
    machine.count(0, 1, "success", 9)
    assert failing(between(before, shot(machine))) == []


def test_memory_errors_that_appeared_fail_and_repaired_ones_do_not(machine: Machine) -> None:
    before = shot(machine)
    machine.count(0, 1, "success", 9)
    put(machine.device(0) / "stats/hardware/mem_ecc_repairable_uncorrected", "1")
    machine.count(0, 0, "hw_repairable_hbm_ue_error", 1)
    assert failing(between(before, shot(machine))) == []
    put(machine.device(0) / "stats/hardware/mem_ecc_uncorrected", "1")
    assert failing(between(before, shot(machine))) == [HARDWARE]


def test_a_counter_that_went_back_or_is_gone_is_no_measurement(machine: Machine) -> None:
    before = shot(machine)
    machine.count(0, 0, "success", 1)
    with pytest.raises(MeasurementError, match="went back"):
        between(before, shot(machine))
    shutil.rmtree(machine.device(0) / "neuron_core0/stats/status/timeout")
    with pytest.raises(MeasurementError, match="is gone"):
        between(before, shot(machine))


def test_a_core_without_a_count_of_successes_gives_no_snapshot(machine: Machine) -> None:
    shutil.rmtree(machine.device(0) / "neuron_core1/stats/status/success")
    assert snapshot(machine.root) is None
    shutil.rmtree(machine.root / "sys/devices/virtual/neuron_device")
    assert snapshot(machine.root) is None


def test_the_records_of_all_processes_are_summed() -> None:
    ran = summed([tally(1, completed=5), tally(2, {"numerical": 3}, completed=6, timed_out=1)])
    assert (ran.source, ran.before, ran.after) == ("neuron-monitor", 0, 11)
    assert ran.numerical == {"pid 2: numerical": 3}
    assert ran.failed == {"pid 2: timed_out": 1}
    assert failing(ran) == [NUMERICAL, FAILED]


def test_what_was_corrected_is_no_error() -> None:
    assert failing(summed([tally(1, {"transient": 9, "hardware": 0}, completed=5)])) == []


def test_a_hardware_error_of_a_process_fails() -> None:
    assert failing(summed([tally(1, {"hardware": 1}, completed=5)])) == [HARDWARE]


def test_a_process_of_which_nothing_was_counted_is_no_measurement() -> None:
    with pytest.raises(MeasurementError, match="no records of them"):
        summed([])
    gap = tally(7, completed=5)
    gap.unread = 1
    with pytest.raises(MeasurementError, match="no counts of pid 7"):
        summed([gap])


def test_without_either_source_nothing_was_measured(machine: Machine) -> None:
    with pytest.raises(MeasurementError, match="neither sysfs nor neuron-monitor"):
        what_ran(None, shot(machine), [])


def test_a_driver_that_is_gone_afterwards_is_an_error_whatever_the_tool_counted(
    machine: Machine,
) -> None:
    with pytest.raises(MeasurementError, match="counters are gone"):
        what_ran(shot(machine), None, [tally(completed=1)])


def test_each_source_alone_is_enough(machine: Machine) -> None:
    (by_tool,) = what_ran(None, None, [tally(completed=1)])
    (by_driver,) = what_ran(shot(machine), shot(machine), [])
    assert (by_tool.source, by_driver.source) == ("neuron-monitor", "sysfs")


def test_an_error_that_only_the_second_source_saw_fails_too(machine: Machine) -> None:
    before = shot(machine)
    machine.count(0, 1, "success", 9)
    ran = what_ran(before, shot(machine), [tally(1, {"numerical": 3}, completed=2)])
    failed: list[Check] = [check for check in judge(ran) if not check.passed]
    assert [(check.name, check.measured) for check in failed] == [(NUMERICAL, 3)]
