"""Stand-ins for the tools of the vendor and of the system, as programs of the imitated host.

    python tools.py NAME ROOT [OPTION]...

What they tell is read from the host at that moment: who uses the device, and what it executed.
Formats are those of the vendor's guide (tools/neuron-sys-tools). The standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a program, which has only its own folder on the path
    sys.path[0] = str(Path(__file__).parent.parent)

from torch_neuron_rehearsal import layout
from torch_neuron_rehearsal.activity import alive

PERIOD = 1.0
"""Seconds between two records of neuron-monitor; the vendor's are 5 s apart unless told."""
BUSY = "NEURON_REHEARSAL_BUSY"
"""Variable with the pid of a process that is to be shown as holding device 0."""
_OUTCOMES = ("completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input")
_ERRORS = ("generic", "numerical", "transient", "model", "runtime", "hardware")


def instance(root: Path) -> layout.Instance:
    """Which instance the host imitates."""
    told = json.loads((root / layout.MARK).read_text(encoding="utf-8"))
    return layout.INSTANCES[told["instance"]]


def users(root: Path) -> list[tuple[int, dict[int, int]]]:
    """Processes that use the device, with what each has executed by core."""
    told = [
        (int(str(one["pid"])), {int(core): int(n) for core, n in _mapping(one["cores"]).items()})
        for one in alive(root)
    ]
    if pid := os.environ.get(BUSY):
        told.append((int(pid), {0: 0}))
    return told


def _mapping(value: object) -> Mapping[str, int]:
    return value if isinstance(value, dict) else {}


def listing(root: Path) -> list[dict[str, Any]]:
    """What ``neuron-ls -j`` prints."""
    held: dict[int, list[dict[str, Any]]] = {}
    for pid, cores in users(root):
        process = {"pid": pid, "command": command(pid)[:40], "neuron_runtime_version": "0.0.0"}
        for device in sorted({core // layout.CORES_PER_DEVICE for core in cores}):
            held.setdefault(device, []).append(process)
    return [
        {
            "neuron_device": device,
            "bdf": f"{device:02x}:00.0",
            "connected_to": None,
            "nc_count": layout.CORES_PER_DEVICE,
            "logical_neuroncore_config": layout.LNC,
            "memory_size": layout.DEVICE_BYTES,
            "neuroncore_ids": [
                layout.CORES_PER_DEVICE * device + core for core in range(layout.CORES_PER_DEVICE)
            ],
            "neuron_processes": held.get(device, []),
        }
        for device in range(instance(root).devices)
    ]


def command(pid: int) -> str:
    """A process's command line; empty where it has ended."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def record(root: Path, before: Mapping[int, int], now: Mapping[int, int]) -> dict[str, Any]:
    """What neuron-monitor prints of one period; ``before`` and ``now`` are totals by pid."""
    shown = instance(root)
    runtimes = [
        {"pid": pid, "error": "", "report": {"execution_stats": _stats(n - before.get(pid, 0))}}
        for pid, n in sorted(now.items())
    ]
    ecc = {"mem_ecc_corrected": 0, "mem_ecc_uncorrected": 0, "sram_ecc_uncorrected": 0}
    devices = [{"neuron_device_index": device} | ecc for device in range(shown.devices)]
    return {
        "neuron_runtime_data": runtimes,
        "system_data": {"neuron_hw_counters": {"neuron_devices": devices, "error": ""}},
        "instance_info": {"instance_type": shown.name, "error": ""},
        "neuron_hardware_info": {
            "neuron_device_count": shown.devices,
            "neuron_device_memory_size": layout.DEVICE_BYTES,
            "neuroncore_per_device_count": layout.CORES_PER_DEVICE,
            "logical_neuroncore_config": layout.LNC,
            "error": "",
        },
    }


def _stats(completed: int) -> dict[str, Any]:
    return {
        "period": PERIOD,
        "error_summary": dict.fromkeys(_ERRORS, 0),
        "execution_summary": {"completed": completed, **dict.fromkeys(_OUTCOMES, 0)},
        "error": "",
    }


def neuron_ls(root: Path, options: list[str]) -> int:
    """Print the devices, as JSON or as a table under its header."""
    if "-j" in options:
        print(json.dumps(listing(root), indent=2))
        return 0
    print(f"instance-type: {instance(root).name}\nlogical-neuroncore-config: {layout.LNC}")
    for device in listing(root):
        print(f"| {device['neuron_device']} | {device['nc_count']} |")
    return 0


def neuron_monitor(root: Path, options: list[str]) -> int:
    """Print a record now, and one each period until somebody ends it."""
    before: dict[int, int] = {}
    while True:
        now = {pid: sum(cores.values()) for pid, cores in users(root)}
        print(json.dumps(record(root, before, now)), flush=True)
        before = now
        time.sleep(PERIOD)


def modinfo(root: Path, options: list[str]) -> int:
    """Print the version of the module on disk."""
    print(layout.DRIVER)
    return 0


def dkms(root: Path, options: list[str]) -> int:
    """Print the state of the module."""
    print(f"aws-neuronx/{layout.DRIVER}, {layout.KERNEL}, x86_64: installed")
    return 0


def dmesg(root: Path, options: list[str]) -> int:
    """Print a log in which nothing is wrong."""
    print(f"[    0.000000] Linux version {layout.KERNEL}")
    return 0


TOOLS: Mapping[str, Callable[[Path, list[str]], int]] = {
    "neuron-ls": neuron_ls,
    "neuron-monitor": neuron_monitor,
    "modinfo": modinfo,
    "dkms": dkms,
    "dmesg": dmesg,
}

if __name__ == "__main__":
    sys.exit(TOOLS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:]))
