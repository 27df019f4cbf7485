"""Processes that hold cores: those that neuron-ls lists, and those that have a device open.

neuron-ls cuts commands short and may not see another container's processes; /proc has the whole
command, and shows only this PID namespace. So both are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from trn_validate.base import Record
from trn_validate.neuron.files import entries
from trn_validate.neuron.finding import Finding, found
from trn_validate.neuron.neuron_ls import Listing

OWN_TOOLS = frozenset({"neuron-ls", "neuron-monitor", "neuron-top"})
"""They open the devices and use no core (neuron-ls lists them only with --show-all-procs)."""

_NODE = re.compile(r"/dev/neuron([0-9]+)")


class Holder(Record):
    """One process, and the devices that it has."""

    pid: int
    command: str
    devices: tuple[int, ...]
    visible: bool
    """Whether the process is in /proc here; one that is not is in a container or on the host."""


def open_devices(root: Path) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Command and devices of every process below ``root``/proc that has one open.

    Other users' processes can only be looked into by root; neuron-ls has the same limit.
    """
    held = {}
    for entry in entries(root / "proc"):
        if not entry.name.isdigit():
            continue
        targets = (_target(link) for link in entries(entry / "fd"))
        devices = {int(match[1]) for target in targets if (match := _NODE.fullmatch(target))}
        argv = _argv(entry)
        if devices and not is_own_tool(argv):
            held[int(entry.name)] = (" ".join(argv), tuple(sorted(devices)))
    return held


def holders(listing: Listing | None, root: Path) -> tuple[Holder, ...]:
    """Put both sources together, each process once."""
    opened = open_devices(root)
    devices = {pid: set(found_in) for pid, (_, found_in) in opened.items()}
    commands = {pid: command for pid, (command, _) in opened.items()}
    for device in listing.devices if listing else ():
        for process in device.processes:
            if is_own_tool(tuple(process.command.split()[:1])):
                continue
            devices.setdefault(process.pid, set()).add(device.index)
            commands.setdefault(process.pid, process.command)
    return tuple(
        Holder(
            pid=pid,
            command=commands[pid],
            devices=tuple(sorted(devices[pid])),
            visible=(root / "proc" / str(pid)).is_dir(),
        )
        for pid in sorted(devices)
    )


def judge_holders(held: Iterable[Holder]) -> tuple[Finding, ...]:
    """Name each with its devices, and how to free them."""
    return tuple(_judge(holder) for holder in held)


def is_own_tool(argv: tuple[str, ...]) -> bool:
    """Whether this is a tool that only looks: by its program alone, never by an argument."""
    return bool(argv) and os.path.basename(argv[0]) in OWN_TOOLS  # noqa: PTH119  # no file is meant


def _judge(holder: Holder) -> Finding:
    devices = ", ".join(map(str, holder.devices))
    what = f"pid {holder.pid} ({holder.command[:120]}) holds device {devices}"
    todo = f"kill {holder.pid}"
    if not holder.visible:
        todo = "it is not visible here: look for it on the host and in the other containers"
    return found("cores_held", what, "neuron-ls and /proc", todo=todo)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115  # a Path would normalise what is compared
    except OSError:
        return ""


def _argv(entry: Path) -> tuple[str, ...]:
    try:
        raw = (entry / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(item) for item in raw.removesuffix(b"\0").split(b"\0"))
