from __future__ import annotations

from tests.neuron.machine import Machine, recorded
from trn_validate.neuron.kernel_log import KernelLog, read_kernel_log


def test_a_log_without_hardware_errors_has_none(machine: Machine) -> None:
    read = read_kernel_log(machine.ask)
    assert (read.value, read.findings) == (KernelLog(hardware_errors=()), ())


def test_a_hardware_error_is_a_finding_with_its_line(machine: Machine) -> None:
    machine.says("dmesg", recorded("dmesg.hardware-error.txt"))
    (finding,) = read_kernel_log(machine.ask).findings
    assert finding.id == "hardware_error_logged"
    assert "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR" in finding.raw
    assert "action=TERMINATE_INSTANCE" in finding.what


def test_a_log_that_may_not_be_read_is_no_healthy_log(machine: Machine) -> None:
    machine.says("dmesg", "", 1, "dmesg: Operation not permitted")
    read = read_kernel_log(machine.ask)
    assert read.value is None
    assert [finding.id for finding in read.findings] == ["kernel_log_unreadable"]
    machine.hangs("dmesg")
    assert read_kernel_log(machine.ask).value is None
