from __future__ import annotations

import json
from typing import Any

import pytest

from tests.neuron.machine import Machine, recorded
from trn_validate.neuron.neuron_monitor import Sample, parse_record, take_sample
from trn_validate.neuron.stream import Stream

RECORD = "neuron-monitor.trn2.48xlarge.json"


def sample(machine: Machine) -> Sample:
    read = take_sample(machine.ask)
    assert read.value is not None
    return read.value


def line(pid: int = 4242, **counts: int) -> str:
    """One record of one process on one line; ``counts`` are executions or errors."""
    record = json.loads(recorded(RECORD))
    runtime = record["neuron_runtime_data"][0]
    runtime["pid"] = pid
    stats = runtime["report"]["execution_stats"]
    for name, count in counts.items():
        group = "error_summary" if name in stats["error_summary"] else "execution_summary"
        stats[group][name] = count
    return json.dumps(record) + "\n"


def fed(*pieces: str) -> Stream:
    stream = Stream()
    for piece in pieces:
        stream.feed(piece)
    stream.close()
    return stream


def test_one_record_tells_of_the_hardware_and_of_each_process(machine: Machine) -> None:
    one = sample(machine)
    assert (one.instance_type, one.devices, one.cores_per_device) == ("trn2.48xlarge", 16, 4)
    assert (one.lnc, one.memory_bytes, one.error) == (2, 96 * 2**30, "")
    assert len(one.ecc) == 16
    assert one.ecc[0]["mem_ecc_uncorrected"] == 0
    (period,) = one.periods
    assert (period.pid, period.executions["completed"], period.errors["numerical"]) == (
        4242,
        123,
        0,
    )


def test_numerical_errors_are_read_by_either_name() -> None:
    text = recorded("neuron-monitor.numerical-errors.json")
    for form in (text, text.replace('"numerical"', '"numeric"')):
        read = parse_record(form)
        assert read.value is not None
        assert read.value.periods[0].errors["numerical"] == 3


def test_an_error_that_the_tool_reports_is_a_finding(machine: Machine) -> None:
    why = {"error": "neuron driver is not loaded", "neuron_device_count": 0}
    machine.change("neuron-monitor", lambda record: record["neuron_hardware_info"].update(why))
    read = take_sample(machine.ask)
    (finding,) = read.findings
    assert (finding.id, finding.what) == ("tool_reports_error", why["error"])


def test_a_group_that_the_tool_could_not_collect_is_no_zero(machine: Machine) -> None:
    def broken(record: dict[str, Any]) -> None:
        record["neuron_runtime_data"][0]["report"]["execution_stats"]["error"] = "no access"
        record["system_data"]["neuron_hw_counters"]["error"] = "no access"

    machine.change("neuron-monitor", broken)
    one = sample(machine)
    assert one.ecc == {}
    assert (one.periods[0].executions, one.periods[0].error) == ({}, "no access")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "tool_failed"),
        ("starting up\n", "tool_output_unreadable"),
        ('{"neuron_runtime_data": [{"pid": 1', "tool_output_truncated"),
        ('{"neuron_runtime_data": "none"}', "tool_output_unreadable"),
    ],
)
def test_what_is_no_record_is_named(machine: Machine, text: str, fault: str) -> None:
    machine.says("neuron-monitor", text)
    read = take_sample(machine.ask)
    assert read.value is None
    assert [finding.id for finding in read.findings] == [fault]


def test_a_tool_that_is_absent_is_a_warning_since_sysfs_counts_too(machine: Machine) -> None:
    machine.loses("neuron-monitor")
    (finding,) = take_sample(machine.ask).findings
    assert (finding.id, finding.severity) == ("neuron_monitor_absent", "warning")


def test_a_machine_where_nothing_runs_has_no_periods(machine: Machine) -> None:
    machine.change("neuron-monitor", lambda record: record.update(neuron_runtime_data=None))
    assert sample(machine).periods == ()


def test_periods_are_summed_by_process() -> None:
    stream = fed(line(1, completed=5), line(2, completed=7, numerical=1), line(1, completed=6))
    assert stream.records == 3
    assert stream.tallies[1].executions["completed"] == 11
    assert stream.tallies[2].executions["completed"] == 7
    assert (stream.tallies[1].errors["numerical"], stream.tallies[2].errors["numerical"]) == (0, 1)
    assert stream.findings() == ()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_may_end_anywhere(size: int) -> None:
    text = line(1, completed=5) + line(1, completed=6)
    stream = fed(*(text[place : place + size] for place in range(0, len(text), size)))
    assert (stream.records, stream.tallies[1].executions["completed"]) == (2, 11)


def test_a_record_may_take_several_lines() -> None:
    pretty = json.dumps(json.loads(line(1, completed=5)), indent=2) + "\n"
    assert fed(pretty, line(1, completed=6)).tallies[1].executions["completed"] == 11


def test_lines_that_are_no_record_are_kept_and_named() -> None:
    half = line(1, completed=5)[:200]
    stream = fed("starting\n", f"{half}\n", line(1, completed=6), '{"other": 1}\n', half)
    assert stream.tallies[1].executions["completed"] == 6
    assert stream.broken == ["starting", half, '{"other": 1}', half]
    (finding,) = stream.findings()
    assert finding.what == "4 lines that are no record, beside 1 records"


def test_a_period_without_counts_is_counted_as_unread() -> None:
    record = json.loads(line(1, completed=5))
    record["neuron_runtime_data"][0]["error"] = "gone"
    stream = fed(line(1, completed=5), json.dumps(record) + "\n")
    assert (stream.tallies[1].periods, stream.tallies[1].unread) == (1, 1)
