from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ROOT
from tests.fake_training import Rig, calm_host, failing
from tests.neuron.machine import Machine, at_lnc_1, put, recorded
from trn_validate import plan as plans
from trn_validate.gate import FAILED, PASSED
from trn_validate.neuron import compare
from trn_validate.neuron.neuron_ls import list_devices
from trn_validate.verdict import Outcome, Verdict

STAGE = "environment.device"

Fault = Callable[[Machine], object]


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    calm_host(monkeypatch)


@pytest.fixture
def small(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "host", kind="trn2.3xlarge").build()


@pytest.fixture
def large(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "host").build()


def rig(machine: Machine) -> Rig:
    plan = plans.load(ROOT / f"configs/{machine.kind}.yaml")
    return Rig(machine.root.parent, plan=plan, choice=machine.install())


def verdict(machine: Machine) -> Verdict:
    return rig(machine).rerun(STAGE)


def kept(machine: Machine, name: str) -> str:
    (file,) = (machine.root.parent / "reports").glob(f"trn2*/{STAGE}/1/host/{name}")
    return file.read_text(encoding="utf-8")


def listed(**changes: Any) -> Fault:
    """The first device of neuron-ls with other fields."""
    return lambda machine: machine.change(
        "neuron-ls -j", lambda devices: devices[0].update(changes)
    )


def hardware(**changes: Any) -> Fault:
    """neuron-monitor with other fields about the hardware."""
    return lambda machine: machine.change(
        "neuron-monitor", lambda record: record["neuron_hardware_info"].update(changes)
    )


def unplug(machine: Machine) -> None:
    shutil.rmtree(machine.root / "sys/bus/pci/devices/0000:00:00.0")


def no_driver(machine: Machine) -> None:
    (machine.root / "sys/module/neuron/version").unlink()


def grown(file: str) -> Fault:
    return lambda machine: put(machine.device(0) / "stats/hardware" / file, "1\n")


FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "PCI functions of a Trn2": (unplug, set()),
    "device nodes": (lambda m: (m.root / "dev/neuron0").unlink(), set()),
    compare.DRIVER: (no_driver, set()),
    compare.LS: (
        lambda m: m.says("neuron-ls -j", "[{"),
        {compare.DEVICES, compare.CORES, compare.LNC, compare.MEMORY},
    ),
    compare.MONITOR: (lambda m: m.says("neuron-monitor", "no access", 1), set()),
    compare.INSTANCE: (
        lambda m: put(m.root / "sys/devices/virtual/dmi/id/product_name", "trn2.48xlarge"),
        {compare.AGREE},
    ),
    compare.DEVICES: (
        lambda m: m.change("neuron-ls -j", lambda devices: [*devices, {**devices[0]}]),
        {compare.AGREE, compare.CORES, compare.LS},
    ),
    compare.CORES: (listed(nc_count=2, neuroncore_ids=[]), {compare.AGREE}),
    compare.LNC: (at_lnc_1, {compare.CORES, compare.MEMORY}),
    compare.MEMORY: (listed(memory_size=48 * 2**30), {compare.AGREE}),
    compare.AGREE: (hardware(neuron_device_count=2), set()),
    compare.HELD: (lambda m: m.opens(4711, 0, "python", "train.py"), set()),
    compare.ECC: (grown("sram_ecc_uncorrected"), set()),
    compare.LOGGED: (lambda m: m.says("dmesg", recorded("dmesg.hardware-error.txt")), set()),
}
"""For each check a host on which it says no, and the checks that then cannot hold either."""


def test_a_large_instance_that_is_healthy_passes_with_every_check(large: Machine) -> None:
    made = rig(large)
    assert made.walk(only=STAGE) == PASSED
    verdict = made.verdict(STAGE)
    assert {*FAULTS} < {check.name for check in verdict.checks}
    assert verdict.versions["driver"] == "2.31.7.0"
    assert verdict.versions["aws-neuronx-tools"].startswith("2.33.38.0")
    assert not [name for name in verdict.facts if name.startswith("error")]


def test_a_small_instance_that_is_healthy_passes(small: Machine) -> None:
    assert verdict(small).outcome is Outcome.PASSED


def test_every_check_has_a_host_on_which_it_says_no() -> None:
    signs = {"PCI functions of a Trn2", "device nodes"}
    assert {*FAULTS} == {*compare.CHECKS, compare.LOGGED} | signs


@pytest.mark.parametrize("name", FAULTS)
def test_a_host_with_a_fault_fails_by_the_check_that_is_meant(small: Machine, name: str) -> None:
    fault, others = FAULTS[name]
    fault(small)
    made = rig(small)
    assert made.walk() == FAILED
    found = made.verdict(STAGE)
    assert found.outcome is Outcome.FAILED
    failed = {check.name for check in found.failed_checks}
    assert name in failed
    assert failed <= {name} | others
    assert not made.launched()


def test_a_device_that_is_missing_from_every_source_fails_by_what_the_plan_asks(
    large: Machine,
) -> None:
    for place in ("sys/bus/pci/devices/0000:0f:00.0", "sys/devices/virtual/neuron_device/neuron15"):
        shutil.rmtree(large.root / place)
    (large.root / "dev/neuron15").unlink()
    large.change("neuron-ls -j", lambda devices: devices[:15])
    hardware(neuron_device_count=15)(large)
    failed = failing(verdict(large))
    assert failed == ["PCI functions of a Trn2", "device nodes", compare.DEVICES, compare.CORES]


def test_a_device_that_only_the_tools_lost_is_a_contradiction_that_names_them(
    large: Machine,
) -> None:
    large.change("neuron-ls -j", lambda devices: devices[:15])
    found = verdict(large)
    assert compare.AGREE in failing(found)
    assert "neuron-ls 15" in found.facts["error sources_contradict"]
    assert "sysfs 16" in found.facts["error sources_contradict"]


def test_a_holder_is_named_with_its_command_its_devices_and_how_to_free_them(
    large: Machine,
) -> None:
    large.says("neuron-ls -j", recorded("neuron-ls.trn2.48xlarge.busy.json"))
    large.opens(
        113985, 0, "python3", "-m", "torchtitan.train", "--module", "qwen3", "--config", "x"
    )
    (check,) = (check for check in verdict(large).checks if check.name == compare.HELD)
    assert check.measured == 1
    assert "pid 113985 (python3 -m torchtitan.train --module qwen3 --config x)" in check.detail
    assert "holds device 0, 1, 2, 3" in check.detail
    assert "kill 113985" in check.detail


def test_the_tools_that_the_stage_starts_itself_are_no_holders(small: Machine) -> None:
    small.opens(5, 0, "/opt/aws/neuron/bin/neuron-monitor")
    assert verdict(small).outcome is Outcome.PASSED


def test_tools_that_are_missing_fail_and_the_package_is_named(small: Machine) -> None:
    for tool in ("neuron-ls", "neuron-monitor"):
        small.loses(tool)
    found = verdict(small)
    assert failing(found) == [compare.LS]
    assert "install aws-neuronx-tools" in found.failed_checks[0].detail
    assert found.facts["warning neuron_monitor_absent"].startswith("neuron-monitor: not found")


def test_counters_that_neither_source_gives_are_an_error_and_no_pass(small: Machine) -> None:
    shutil.rmtree(small.root / "sys/devices/virtual/neuron_device/neuron0/stats")
    small.loses("neuron-monitor")
    found = verdict(small)
    assert found.outcome is Outcome.ERROR
    assert found.missing == (compare.ECC,)


def test_a_module_that_is_newer_than_the_loaded_one_names_both_versions(small: Machine) -> None:
    small.says("modinfo -F", "2.32.0.0\n")
    (check,) = verdict(small).failed_checks
    assert check.name == compare.DRIVER
    assert "the loaded driver is 2.31.7.0, the module on disk 2.32.0.0" in check.detail
    assert "modprobe" in check.detail


def test_a_hidden_kernel_log_is_a_warning_and_its_check_is_not_owed(small: Machine) -> None:
    small.says("dmesg", "", 1, "dmesg: read kernel buffer failed: Operation not permitted")
    found = verdict(small)
    assert found.outcome is Outcome.PASSED
    assert compare.LOGGED not in {check.name for check in found.checks}
    assert "Operation not permitted" in found.facts["warning kernel_log_unreadable"]


def test_what_the_tools_printed_is_kept_without_the_instance_id(small: Machine) -> None:
    text = recorded("neuron-ls.trn2.3xlarge.json")[:-30]
    small.says("neuron-ls -j", text)
    verdict(small)
    (broken,) = (
        f for f in json.loads(kept(small, "findings.json")) if f["id"] == "tool_output_truncated"
    )
    assert broken["raw"] == text
    tools = kept(small, "tools.txt")
    assert "$ neuron-ls -j\n[exit status 0]\n[\n" in tools
    assert '"instance_id": "<redacted>"' in tools


def test_nothing_is_written_into_the_host(small: Machine) -> None:
    choice = small.install()
    before = {file: file.stat().st_mtime_ns for file in small.root.rglob("*") if file.is_file()}
    made = Rig(
        small.root.parent, plan=plans.load(ROOT / "configs/trn2.3xlarge.yaml"), choice=choice
    )
    assert made.walk(only=STAGE) == PASSED
    after = {file: file.stat().st_mtime_ns for file in small.root.rglob("*") if file.is_file()}
    assert after == before
    assert list_devices(small.ask).value is not None
