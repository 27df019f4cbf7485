from __future__ import annotations

import shutil

import pytest

from tests.neuron.machine import Machine, put
from trn_validate.neuron.host import LNC_FILE


def test_a_healthy_host_answers_from_every_source(machine: Machine) -> None:
    facts = machine.facts()
    assert facts.findings == ()
    assert None not in (facts.sysfs, facts.listing, facts.sample, facts.kernel_log)
    assert (facts.lnc_file, facts.lnc_variable, facts.holders) == (None, "", ())


def test_a_host_that_answers_nothing_at_all_is_read_to_its_end(machine: Machine) -> None:
    shutil.rmtree(machine.root)
    machine.answers.clear()
    facts = machine.facts()
    assert (facts.sysfs, facts.listing, facts.sample, facts.kernel_log) == (None,) * 4
    assert [finding.id for finding in facts.findings] == [
        "driver_not_loaded",
        "module_version_unknown",
        "kernel_headers_missing",
        "dkms_state_unknown",
        "tool_absent",
        "neuron_monitor_absent",
        "kernel_log_unreadable",
    ]


@pytest.mark.parametrize("tool", ["neuron-ls -j", "neuron-ls", "neuron-monitor"])
@pytest.mark.parametrize("text", ["", "{", "[", "\x00\ufffd", "null", "[{}]", "{}", "[1]"])
def test_whatever_a_tool_prints_is_a_finding_and_never_a_crash(
    machine: Machine, tool: str, text: str
) -> None:
    machine.says(tool, text)
    (finding,) = machine.facts().findings
    assert finding.where.startswith(tool.split()[0])
    assert finding.raw == text


@pytest.mark.parametrize("tool", ["neuron-ls -j", "neuron-monitor", "dmesg", "dkms status"])
def test_a_tool_that_hangs_leaves_the_other_sources_alone(machine: Machine, tool: str) -> None:
    machine.hangs(tool)
    facts = machine.facts()
    assert len(facts.findings) == 1
    assert facts.sysfs is not None


def test_the_lnc_of_file_and_variable_are_read(machine: Machine) -> None:
    put(machine.root / LNC_FILE, "# set by the image\nNEURON_LOGICAL_NC_CONFIG=1\n")
    facts = machine.facts(NEURON_LOGICAL_NC_CONFIG="2")
    assert (facts.lnc_file, facts.lnc_variable) == (1, "2")
    put(machine.root / LNC_FILE, "NEURON_LOGICAL_NC_CONFIG=7\n")
    assert machine.facts().lnc_file is None


def test_files_of_sysfs_that_cannot_be_read_are_one_finding(machine: Machine) -> None:
    for index in (0, 1):
        put(machine.device(index) / "core_count", "eight")
    (finding,) = machine.facts().findings
    assert finding.id == "sysfs_unreadable"
    assert finding.what.startswith("2 files")
    assert len(finding.raw.splitlines()) == 2
