"""What neuron-monitor tells: one record, or a stream of them summed by process.

Counts are per process and per period, so a total is a sum over records. Documented in the
vendor's guide (tools/neuron-sys-tools/neuron-monitor-user-guide). Guess: a record is one line, as
users read it with ``head -n1``. Guess: the key of NaN errors is ``numerical`` as in the guide's
example, or ``numeric`` as in its text; both are read.
"""

from __future__ import annotations

from pydantic import ConfigDict, ValidationError

from trn_validate.base import Record
from trn_validate.neuron.finding import Finding, Read, found
from trn_validate.neuron.noisy import Lenient, misshapen, read_json
from trn_validate.neuron.tools import Ask, Output, unanswered

NAME = "neuron-monitor"


class _Execution(Lenient):
    error_summary: dict[str, int]
    execution_summary: dict[str, int]
    error: str = ""


class _Report(Lenient):
    execution_stats: _Execution | None = None


class _Runtime(Lenient):
    pid: int
    error: str = ""
    report: _Report | None = None


class _EccDevice(Lenient):
    model_config = ConfigDict(extra="allow", frozen=True)
    neuron_device_index: int


class _HwCounters(Lenient):
    neuron_devices: tuple[_EccDevice, ...] | None = None
    error: str = ""


class _System(Lenient):
    neuron_hw_counters: _HwCounters | None = None


class _Instance(Lenient):
    instance_type: str = ""


class _Hardware(Lenient):
    neuron_device_count: int | None = None
    neuron_device_memory_size: int | None = None
    neuroncore_per_device_count: int | None = None
    logical_neuroncore_config: int | None = None
    error: str = ""


class _Whole(Lenient):
    neuron_runtime_data: tuple[_Runtime, ...] | None = None
    system_data: _System = _System()
    instance_info: _Instance = _Instance()
    neuron_hardware_info: _Hardware = _Hardware()


class Period(Record):
    """What one process did in one period."""

    pid: int
    executions: dict[str, int]
    """Outcomes: completed, completed_with_err, completed_with_num_err, timed_out and others."""
    errors: dict[str, int]
    """Errors by kind: generic, numerical, transient, model, runtime, hardware."""
    error: str = ""
    """Why there are no counts."""


class Sample(Record):
    """One record."""

    instance_type: str
    devices: int | None
    cores_per_device: int | None
    memory_bytes: int | None
    """Of one device."""
    lnc: int | None
    periods: tuple[Period, ...]
    ecc: dict[int, dict[str, int]]
    """ECC counters of each device; empty where they could not be read."""
    error: str = ""
    """What the tool says of the hardware or its counters; filled where the driver is missing."""


def take_sample(ask: Ask) -> Read[Sample]:
    """Start neuron-monitor, take its first record and end it."""
    output: Output = ask(NAME, first_line=True)
    if output.ended == "absent":
        missing = found("neuron_monitor_absent", "not found", NAME)
        return Read(None, (missing,))
    if (why := unanswered(output)) is not None:
        return Read(None, (why,))
    return parse_record(output.stdout)


def parse_record(text: str) -> Read[Sample]:
    """Read the first record in ``text``."""
    answer = read_json(text, NAME, is_record)
    if answer.value is None:
        return Read(None, answer.findings)
    read = sample_of(answer.value)
    return Read(read.value, answer.findings + read.findings)


def sample_of(record: object) -> Read[Sample]:
    """Read a record that is parsed already."""
    try:
        whole = _Whole.model_validate(record)
    except ValidationError as error:
        return Read(None, (misshapen(error, NAME, str(record)),))
    hardware, counters = whole.neuron_hardware_info, whole.system_data.neuron_hw_counters
    said = "; ".join(filter(None, (hardware.error, counters.error if counters else "")))
    sample = Sample(
        instance_type=whole.instance_info.instance_type,
        devices=hardware.neuron_device_count,
        cores_per_device=hardware.neuroncore_per_device_count,
        memory_bytes=hardware.neuron_device_memory_size,
        lnc=hardware.logical_neuroncore_config,
        periods=tuple(_period(runtime) for runtime in whole.neuron_runtime_data or ()),
        ecc=_ecc(counters),
        error=said,
    )
    return Read(sample, _reported(said))


def is_record(value: object) -> bool:
    """Whether a parsed JSON value has the shape of a record."""
    return isinstance(value, dict) and "neuron_runtime_data" in value


def _reported(said: str) -> tuple[Finding, ...]:
    return (found("tool_reports_error", said, NAME, raw=said),) if said else ()


def _period(runtime: _Runtime) -> Period:
    stats = runtime.report.execution_stats if runtime.report else None
    why = runtime.error or (stats.error if stats else "no execution_stats")
    if stats is None or why:
        return Period(pid=runtime.pid, executions={}, errors={}, error=why)
    errors = dict(stats.error_summary)
    if "numeric" in errors:
        errors["numerical"] = errors.pop("numeric") + errors.get("numerical", 0)
    return Period(pid=runtime.pid, executions=dict(stats.execution_summary), errors=errors)


def _ecc(counters: _HwCounters | None) -> dict[int, dict[str, int]]:
    if counters is None or counters.error:
        return {}
    return {
        device.neuron_device_index: {
            name: value
            for name, value in (device.model_extra or {}).items()
            if isinstance(value, int) and "ecc" in name
        }
        for device in counters.neuron_devices or ()
    }
