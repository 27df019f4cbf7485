"""What the driver shows in sysfs. Nothing here is ever written: ``reset`` there resets a device,
and writing to a counter clears it.

Names are from the vendor's sysfs guide and from the driver's source (neuron_sysfs_metrics.c of
2.24.7.0); where these two differ both are known. Guess: health_status lists the components that
are not healthy; the release notes of driver 2.30 give its names alone.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field

from trn_validate.base import Record
from trn_validate.neuron.files import entries, held

DEVICES = "sys/devices/virtual/neuron_device"
SUCCESS = "success"
"""Status that counts completed executions: the driver fills it from INFER_COMPLETED."""

_DEVICE = re.compile(r"neuron([0-9]+)")
_CORE = re.compile(r"neuron_core([0-9]+)")
_NUMBER = re.compile(r"[0-9]{1,20}")
_HEALTHY = frozenset({"", "none", "0", "0x0", "ok", "healthy"})
"""Guess: a healthy device says so by one of these, since no document shows one."""


class SysDevice(Record):
    """One device as the driver shows it."""

    index: int
    core_count: int | None = None
    """As the driver counts them; only root may read it before driver 2.28."""
    instance: str = ""
    """Family, such as Trn2; not the EC2 instance type."""
    ecc: dict[str, int] = Field(default_factory=dict)
    unhealthy: tuple[str, ...] = ()
    cores: dict[int, dict[str, int]] = Field(default_factory=dict)
    """Cumulative count of each status of each physical core, since the driver was loaded."""


class Sysfs(Record):
    """All devices that the driver shows."""

    devices: tuple[SysDevice, ...]
    unreadable: tuple[str, ...] = ()
    """Files that are there and could not be read, or held no number."""


def read_sysfs(root: Path) -> Sysfs | None:
    """Read every device below ``root``; None where the driver shows none at all."""
    unreadable: list[str] = []
    found = {
        int(match[1]): root / DEVICES / name
        for name in _names(root / DEVICES)
        if (match := _DEVICE.fullmatch(name))
    }
    devices = tuple(_device(index, found[index], unreadable) for index in sorted(found))
    return Sysfs(devices=devices, unreadable=tuple(unreadable)) if devices else None


def _device(index: int, folder: Path, unreadable: list[str]) -> SysDevice:
    hardware = folder / "stats/hardware"
    counts = {n: _count(hardware / n, unreadable) for n in _names(hardware) if "ecc" in n}
    cores = {
        int(match[1]): _statuses(folder / name / "stats/status", unreadable)
        for name in _names(folder)
        if (match := _CORE.fullmatch(name))
    }
    return SysDevice(
        index=index,
        core_count=_count(folder / "core_count", unreadable),
        instance=held(folder / "info/architecture/instance_type") or "",
        ecc={name: count for name, count in counts.items() if count is not None},
        unhealthy=_unhealthy(hardware / "health_status/unhealthy_components", unreadable),
        cores=cores,
    )


def _statuses(folder: Path, unreadable: list[str]) -> dict[str, int]:
    counts = {name: _count(folder / name / "total", unreadable) for name in _names(folder)}
    return {name: count for name, count in counts.items() if count is not None}


def _unhealthy(file: Path, unreadable: list[str]) -> tuple[str, ...]:
    try:
        told = file.read_text("ascii", "replace")
    except FileNotFoundError:
        return ()  # drivers before 2.30 have none
    except OSError:
        unreadable.append(str(file))
        return ()
    named = (part.strip() for part in told.split(","))
    return tuple(part for part in named if part.lower() not in _HEALTHY)


def _count(file: Path, unreadable: list[str]) -> int | None:
    told = held(file)
    if told is not None and _NUMBER.fullmatch(told):
        return int(told)
    if told is not None or file.exists():
        unreadable.append(str(file))
    return None


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in entries(folder)]
