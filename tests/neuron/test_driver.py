from __future__ import annotations

import shutil

import pytest

from tests.neuron.machine import DRIVER, KERNEL, Machine, recorded
from trn_validate.neuron.driver import Built, Driver, judge_driver, parse_dkms, read_driver
from trn_validate.neuron.finding import Finding


def driver(machine: Machine) -> Driver:
    return read_driver(machine.root, machine.ask)


def judged(machine: Machine) -> tuple[Finding, ...]:
    return judge_driver(driver(machine))


def faults(machine: Machine) -> list[str]:
    return [finding.id for finding in judged(machine)]


def test_a_driver_that_is_loaded_and_built_has_no_fault(machine: Machine) -> None:
    assert driver(machine) == Driver(
        loaded=DRIVER,
        on_disk=DRIVER,
        kernel=KERNEL,
        headers=True,
        built=(Built(version=DRIVER, kernel=KERNEL, state="installed"),),
    )
    assert faults(machine) == []


def test_a_driver_that_is_not_loaded_is_named(machine: Machine) -> None:
    (machine.root / "sys/module/neuron/version").unlink()
    assert faults(machine) == ["driver_not_loaded"]


def test_another_version_on_disk_asks_for_a_reload(machine: Machine) -> None:
    machine.says("modinfo -F", "2.32.0.0\n")
    (finding,) = judged(machine)
    assert finding.id == "module_newer_than_loaded"
    assert "modprobe neuron" in finding.todo


@pytest.mark.parametrize("text", ["", "modinfo: ERROR: Module neuron not found.\n", "neuron\n"])
def test_a_module_whose_version_is_no_version_is_unknown(machine: Machine, text: str) -> None:
    machine.says("modinfo -F", text, 1 if text.startswith("modinfo") else 0)
    assert driver(machine).on_disk == ""
    assert faults(machine) == ["module_version_unknown"]


def test_headers_of_another_kernel_are_none(machine: Machine) -> None:
    shutil.move(machine.root / "lib/modules" / KERNEL, machine.root / "lib/modules/6.14.0-1011-aws")
    assert faults(machine) == ["kernel_headers_missing"]


def test_headers_may_lie_where_red_hat_puts_them(machine: Machine) -> None:
    shutil.rmtree(machine.root / "lib/modules")
    (machine.root / "usr/src/kernels" / KERNEL).mkdir(parents=True)
    assert driver(machine).headers


def test_a_driver_that_is_only_added_was_not_built(machine: Machine) -> None:
    machine.says("dkms status", recorded("dkms.only-added.txt"))
    (finding,) = judged(machine)
    assert finding.id == "dkms_not_built"
    assert "2.31.7.0 for no kernel: added" in finding.what


def test_a_dkms_that_knows_no_neuron_driver_is_no_fault(machine: Machine) -> None:
    machine.says("dkms status", "nvidia/550.1, 6.14.0, x86_64: installed\n")
    assert driver(machine).built == ()
    assert faults(machine) == []


def test_a_dkms_that_is_absent_or_fails_is_unknown(machine: Machine) -> None:
    machine.says("dkms status", "", 127)
    assert faults(machine) == ["dkms_state_unknown"]
    machine.loses("dkms")
    assert faults(machine) == ["dkms_state_unknown"]


def test_both_formats_of_dkms_are_read() -> None:
    (old,) = parse_dkms(recorded("dkms.version-2.txt"))
    assert old == Built(version=DRIVER, kernel=KERNEL, state="installed")
