from __future__ import annotations

from typing import Any

import pytest

from tests.builders import ROOT
from tests.neuron.machine import Machine, at_lnc_1, put
from trn_validate import plan as plans
from trn_validate.check import Check
from trn_validate.neuron.compare import (
    AGREE,
    CHECKS,
    ECC,
    INSTANCE,
    LNC,
    LOGGED,
    counted,
    device_checks,
)
from trn_validate.neuron.finding import Finding
from trn_validate.neuron.host import LNC_FILE


def judged(machine: Machine, **environment: str) -> tuple[dict[str, Check], tuple[Finding, ...]]:
    profile = plans.load(ROOT / f"configs/{machine.kind}.yaml").profile
    checks, told = device_checks(machine.facts(**environment), profile, machine.choice.signs)
    return {check.name: check for check in checks}, told


def contradictions(machine: Machine, **environment: str) -> list[str]:
    wanted = ("sources_contradict", "lnc_contradicts")
    return [f.what for f in judged(machine, **environment)[1] if f.id in wanted]


@pytest.mark.parametrize("kind", ["trn2.48xlarge", "trn2.3xlarge"])
def test_a_healthy_machine_holds_in_every_check(kind: str, machine: Machine) -> None:
    root = machine.root.parent / "other"
    checks, told = judged(Machine(root, kind=kind).build())
    assert {*checks} == {*CHECKS, LOGGED}
    assert [check for check in checks.values() if not check.passed] == []
    assert told == ()


def test_the_larger_network_variant_runs_the_plan_of_its_twin(machine: Machine) -> None:
    put(machine.root / "sys/devices/virtual/dmi/id/product_name", "trn2u.48xlarge")
    text = machine.answers["neuron-ls"].stdout
    machine.says("neuron-ls", text.replace("trn2.48xlarge", "trn2u.48xlarge"))
    kind = {"instance_type": "trn2u.48xlarge"}
    machine.change("neuron-monitor", lambda record: record["instance_info"].update(kind))
    checks, told = judged(machine)
    assert checks[INSTANCE].measured == "trn2.48xlarge"
    assert told == ()


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("sys/devices/virtual/neuron_device/neuron16/core_count", "sysfs 17"),
        ("dev/neuron16", "/dev 17"),
    ],
)
def test_a_source_with_one_device_more_contradicts_all_others(
    machine: Machine, place: str, what: str
) -> None:
    put(machine.root / place, "8")
    (said,) = contradictions(machine)
    assert what in said
    assert said.count("16") == 4


def test_a_sample_of_a_tool_that_reports_an_error_contradicts_nobody(machine: Machine) -> None:
    broken = {"error": "no driver", "neuron_device_count": 0}
    machine.change("neuron-monitor", lambda record: record["neuron_hardware_info"].update(broken))
    assert contradictions(machine) == []


def test_cores_that_are_neither_the_logical_nor_the_physical_ones_are_named(
    machine: Machine,
) -> None:
    put(machine.device(5) / "core_count", "2")
    assert contradictions(machine) == ["device 5: 4 cores at LNC 2, and 2 in sysfs"]
    put(machine.device(5) / "core_count", "4")
    assert contradictions(machine) == []


def test_two_types_that_differ_in_their_network_alone_are_no_contradiction(
    machine: Machine,
) -> None:
    text = machine.answers["neuron-ls"].stdout
    machine.says("neuron-ls", text.replace("trn2.48xlarge", "trn2u.48xlarge"))
    assert contradictions(machine) == []


def test_the_variable_is_held_against_the_tools_and_wins_over_the_file(machine: Machine) -> None:
    put(machine.root / LNC_FILE, "NEURON_LOGICAL_NC_CONFIG=1\n")
    (said,) = contradictions(machine)
    assert said == "neuron-ls 2, neuron-monitor 2, /opt/aws/neuron/logical_nc_config 1"
    assert contradictions(machine, NEURON_LOGICAL_NC_CONFIG="2") == []
    (said,) = contradictions(machine, NEURON_LOGICAL_NC_CONFIG="1")
    assert said == "neuron-ls 2, neuron-monitor 2, environment 1"


def test_a_machine_at_lnc_1_agrees_with_itself_and_not_with_the_plan(machine: Machine) -> None:
    at_lnc_1(machine)
    checks, told = judged(machine)
    assert (checks[LNC].measured, checks[LNC].passed, checks[AGREE].passed) == (1, False, True)
    assert told == ()


def test_an_error_that_the_hardware_repaired_is_a_warning(machine: Machine) -> None:
    put(machine.device(1) / "stats/hardware/mem_ecc_repairable_uncorrected", "4\n")
    checks, (finding,) = judged(machine)
    assert (finding.id, finding.severity) == ("repairable_ecc", "warning")
    assert checks[ECC].passed


def test_an_error_that_only_neuron_monitor_counts_fails(machine: Machine) -> None:
    def grown(record: dict[str, Any]) -> None:
        devices = record["system_data"]["neuron_hw_counters"]["neuron_devices"]
        devices[7]["sram_ecc_uncorrected"] = 2
        devices[7]["mem_ecc_corrected"] = 900

    machine.change("neuron-monitor", grown)
    for index in range(16):
        (machine.device(index) / "stats/hardware/sram_ecc_uncorrected").unlink()
    checks, (finding,) = judged(machine)
    assert (finding.id, finding.severity) == ("uncorrected_ecc", "error")
    assert finding.what == "device 7: sram_ecc_uncorrected is 2"
    assert not checks[ECC].passed


def test_a_component_that_is_not_healthy_fails(machine: Machine) -> None:
    put(machine.device(2) / "stats/hardware/health_status/unhealthy_components", "hbm\n")
    checks, (finding,) = judged(machine)
    assert (finding.id, finding.what) == ("unhealthy_component", "device 2: hbm")
    assert not checks[ECC].passed


def test_counters_of_only_some_devices_are_not_all(machine: Machine) -> None:
    def fewer(record: dict[str, Any]) -> None:
        del record["system_data"]["neuron_hw_counters"]["neuron_devices"][3:]

    machine.change("neuron-monitor", fewer)
    assert counted(machine.facts())
    for file in (machine.device(4) / "stats/hardware").glob("*ecc*"):
        file.unlink()
    assert not counted(machine.facts())
    assert ECC not in judged(machine)[0]


def test_a_tool_that_tells_no_lnc_leaves_its_check_missing(machine: Machine) -> None:
    def drop(listing: list[dict[str, Any]]) -> None:
        for device in listing:
            del device["logical_neuroncore_config"]

    machine.change("neuron-ls -j", drop)
    text = machine.answers["neuron-ls"].stdout
    without = [line for line in text.splitlines() if "neuroncore-config" not in line]
    machine.says("neuron-ls", "\n".join(without) + "\n")
    checks, _ = judged(machine)
    assert {*CHECKS} - {*checks} == {LNC}


def test_a_profile_of_a_device_that_states_no_number_is_refused(machine: Machine) -> None:
    profile = plans.load(ROOT / f"configs/{machine.kind}.yaml").profile
    bare = profile.model_copy(update={"devices": None})
    with pytest.raises(ValueError, match="states no value"):
        device_checks(machine.facts(), bare, machine.choice.signs)
