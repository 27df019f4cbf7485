"""What neuron-ls tells: its JSON, and the header of its table, which the JSON lacks.

The format is documented (tools/neuron-sys-tools/neuron-ls of the vendor's guide); that no device
means an empty stdout and exit status 1 was measured by users.
"""

from __future__ import annotations

import re

from pydantic import ValidationError

from trn_validate.base import Record
from trn_validate.neuron.finding import Finding, Read, found
from trn_validate.neuron.noisy import Lenient, misshapen, read_json
from trn_validate.neuron.tools import Ask, Output, unanswered

NAME = "neuron-ls"

_HEADER = re.compile(r"^(instance-type|logical-neuroncore-config): *(\S+) *$", re.M)


class _Process(Lenient):
    pid: int
    command: str = ""
    neuron_runtime_version: str = ""


class _Entry(Lenient):
    neuron_device: int
    nc_count: int
    memory_size: int
    bdf: str = ""
    logical_neuroncore_config: int | None = None  # older tools have none
    neuroncore_ids: tuple[int, ...] = ()
    neuron_processes: tuple[_Process, ...] | None = None  # a list may be null, as connected_to is


class Process(Record):
    """A process that neuron-ls lists under a device."""

    pid: int
    command: str
    """As neuron-ls prints it: cut after some forty characters."""


class Device(Record):
    """One device."""

    index: int
    cores: int
    """Logical cores: 4 at LNC 2, 8 at LNC 1."""
    memory_bytes: int
    lnc: int | None
    core_ids: tuple[int, ...]
    processes: tuple[Process, ...]


class Listing(Record):
    """All devices, and what the header says."""

    devices: tuple[Device, ...]
    instance_type: str = ""
    lnc: int | None = None
    """Of the header."""

    @property
    def lncs(self) -> tuple[int, ...]:
        """Every LNC that is told anywhere, each once."""
        told = {self.lnc, *(device.lnc for device in self.devices)}
        return tuple(sorted(lnc for lnc in told if lnc is not None))


def list_devices(ask: Ask) -> Read[Listing]:
    """Ask neuron-ls for its JSON, then for the header of its table."""
    output = ask(NAME, "-j")
    devices = parse_devices(output)
    if devices.value is None:
        return Read(None, devices.findings)
    header = parse_header(ask(NAME))
    kind, lnc = header.value or ("", None)
    listing = Listing(devices=devices.value, instance_type=kind, lnc=lnc)
    return Read(listing, devices.findings + header.findings + _contradictions(listing, output))


def parse_devices(output: Output) -> Read[tuple[Device, ...]]:
    """Read what ``neuron-ls -j`` printed."""
    if (why := unanswered(output)) is not None:
        return Read(None, (why,))
    where = f"{NAME} -j"
    if output.stdout.strip() == "[]":
        return Read((), ())
    answer = read_json(output.stdout, where, _is_listing)
    if answer.value is None:
        return Read(None, answer.findings)
    assert isinstance(answer.value, list)
    try:
        entries = [_Entry.model_validate(entry) for entry in answer.value]
    except ValidationError as error:
        return Read(None, (*answer.findings, misshapen(error, where, output.stdout)))
    return Read(tuple(_device(entry) for entry in entries), answer.findings)


def parse_header(output: Output) -> Read[tuple[str, int | None]]:
    """Read instance type and LNC from what ``neuron-ls`` printed without options."""
    if (why := unanswered(output)) is not None:
        return Read(None, (why,))
    told = dict(_HEADER.findall(output.stdout))
    lnc = told.get("logical-neuroncore-config", "")
    # Only these two values exist (logical-neuroncore-config of the guide).
    read = int(lnc) if lnc in ("1", "2") else None
    if "instance-type" not in told or (lnc and read is None):
        what = "no header with instance-type and logical-neuroncore-config"
        return Read(None, (found("tool_output_unreadable", what, NAME, raw=output.text),))
    return Read((told["instance-type"], read))


def _is_listing(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_entry(entry) for entry in value)


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and "neuron_device" in value


def _device(entry: _Entry) -> Device:
    processes = entry.neuron_processes or ()
    return Device(
        index=entry.neuron_device,
        cores=entry.nc_count,
        memory_bytes=entry.memory_size,
        lnc=entry.logical_neuroncore_config,
        core_ids=entry.neuroncore_ids,
        processes=tuple(Process(pid=p.pid, command=p.command) for p in processes),
    )


def _contradictions(listing: Listing, output: Output) -> tuple[Finding, ...]:
    told = []
    indices = [device.index for device in listing.devices]
    if len(set(indices)) != len(indices):
        told.append("a device is listed twice")
    if len(listing.lncs) > 1:
        told.append(f"LNC is {' and '.join(map(str, listing.lncs))} in one answer")
    told += [
        f"device {d.index} has {d.cores} cores and {len(d.core_ids)} core ids"
        for d in listing.devices
        if d.core_ids and len(d.core_ids) != d.cores
    ]
    name = "tool_output_contradicts_itself"
    return tuple(found(name, what, NAME, raw=output.stdout) for what in told)
