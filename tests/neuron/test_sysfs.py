from __future__ import annotations

import shutil

from tests.neuron.machine import STATUSES, Machine, put
from trn_validate.neuron.sysfs import Sysfs, read_sysfs


def shown(machine: Machine) -> Sysfs:
    sysfs = read_sysfs(machine.root)
    assert sysfs is not None
    return sysfs


def test_every_device_has_its_cores_counters_and_health(machine: Machine) -> None:
    sysfs = shown(machine)
    assert [device.index for device in sysfs.devices] == list(range(16))
    first = sysfs.devices[0]
    assert (first.core_count, first.instance, first.unhealthy) == (8, "Trn2", ())
    assert first.ecc == {
        "mem_ecc_repairable_uncorrected": 0,
        "mem_ecc_uncorrected": 0,
        "sram_ecc_corrected": 0,
        "sram_ecc_uncorrected": 0,
    }
    assert first.cores[1] == {name: 7 if name == "success" else 0 for name in STATUSES}
    assert sysfs.unreadable == ()


def test_a_host_without_the_driver_shows_nothing(machine: Machine) -> None:
    shutil.rmtree(machine.root / "sys/devices/virtual/neuron_device")
    assert read_sysfs(machine.root) is None


def test_a_file_that_holds_no_number_is_named_and_is_no_zero(machine: Machine) -> None:
    file = put(machine.device(3) / "stats/hardware/mem_ecc_uncorrected", "many\n")
    sysfs = shown(machine)
    assert "mem_ecc_uncorrected" not in sysfs.devices[3].ecc
    assert sysfs.unreadable == (str(file),)


def test_a_counter_that_is_a_folder_is_named(machine: Machine) -> None:
    file = machine.device(0) / "core_count"
    file.unlink()
    file.mkdir()
    sysfs = shown(machine)
    assert sysfs.devices[0].core_count is None
    assert sysfs.unreadable == (str(file),)


def test_components_that_are_not_healthy_are_listed(machine: Machine) -> None:
    put(machine.device(2) / "stats/hardware/health_status/unhealthy_components", "hbm, sram\n")
    assert shown(machine).devices[2].unhealthy == ("hbm", "sram")


def test_a_driver_that_is_older_has_no_health(machine: Machine) -> None:
    shutil.rmtree(machine.device(0) / "stats/hardware/health_status")
    assert shown(machine).devices[0].unhealthy == ()
    assert shown(machine).unreadable == ()


def test_health_that_cannot_be_read_is_named_and_is_not_healthy_by_default(
    machine: Machine,
) -> None:
    file = machine.device(0) / "stats/hardware/health_status/unhealthy_components"
    file.unlink()
    file.mkdir()
    assert shown(machine).unreadable == (str(file),)


def test_what_is_no_device_is_passed_over(machine: Machine) -> None:
    (machine.device(0).parent / "power").mkdir()
    assert len(shown(machine).devices) == 16


def test_a_counter_that_is_not_there_is_absent_and_not_unreadable(machine: Machine) -> None:
    (machine.device(0) / "core_count").unlink()
    found = read_sysfs(machine.root)
    assert found is not None
    assert found.devices[0].core_count is None
    assert found.unreadable == ()
