"""Build the host that a rehearsal runs on: files and tools of an instance that is not there.

    python -m torch_neuron_rehearsal.host ROOT INSTANCE

The standard library alone. What it claims to be, no machine is: driver, kernel and tools have
versions that no release has.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from torch_neuron_rehearsal import layout
from torch_neuron_rehearsal.layout import INSTANCES, Instance

VENDOR_TOOLS = ("neuron-ls", "neuron-monitor")
SYSTEM_TOOLS = ("modinfo", "dkms", "dmesg")
TORCH_TOOL = "nccom-test"
_TREES = ("sys", "dev", "proc", "run", "etc", "lib", "opt", "usr")


def build(root: Path, instance: Instance) -> None:
    """Make a healthy host below ``root``; the one that was there is replaced.

    Raises:
        FileExistsError: something else lies there, which is not touched.
    """
    if root.is_dir() and any(root.iterdir()) and not (root / layout.MARK).is_file():
        raise FileExistsError(f"{root} is not empty, and no host of a rehearsal")
    for tree in _TREES:
        shutil.rmtree(root / tree, ignore_errors=True)
    for folder in (layout.processes(root), root / "proc", root / "dev"):
        folder.mkdir(parents=True)
    _put(root / layout.MARK, json.dumps({"instance": instance.name}))
    _put(root / "sys/devices/virtual/dmi/id/product_name", instance.name)
    _put(root / "sys/module/neuron/version", layout.DRIVER)
    _put(root / "proc/sys/kernel/osrelease", layout.KERNEL)
    (root / "lib/modules" / layout.KERNEL / "build").mkdir(parents=True)
    for device in range(instance.devices):
        _plug(root, device)
    for core in range(instance.cores):
        for status in layout.STATUSES:
            _put(layout.counter(root, core, status), f"{0:019d}")
    _tools(root)


def _plug(root: Path, device: int) -> None:
    function = root / "sys/bus/pci/devices" / f"0000:{device:02x}:00.0"
    _put(function / "vendor", "0x1d0f")
    _put(function / "device", "0x7364")
    _put(root / "dev" / f"neuron{device}", "")
    folder = layout.device_folder(root, device)
    _put(folder / "core_count", str(layout.LNC * layout.CORES_PER_DEVICE))
    _put(folder / "info/architecture/instance_type", "Trn2")
    for name in ("mem_ecc_uncorrected", "sram_ecc_uncorrected", "mem_ecc_corrected"):
        _put(folder / "stats/hardware" / name, "0")


def _tools(root: Path) -> None:
    # It cannot find its own place once it is copied, so it is told where it lies.
    script = Path(__file__).with_name("tools.py")
    site = Path(__file__).parent.parent
    for folder, names in (("opt/aws/neuron/bin", VENDOR_TOOLS), ("usr/bin", SYSTEM_TOOLS)):
        for name in names:
            _program(root / folder / name, sys.executable, str(script), name, str(root))
    path = f"PYTHONPATH={os.pathsep.join((str(site), os.environ.get('PYTHONPATH', '')))}"
    argv = (sys.executable, "-m", "torch_neuron_rehearsal.nccom")
    _program(root / "opt/aws/neuron/bin" / TORCH_TOOL, "/usr/bin/env", path, *argv)


def _program(file: Path, *argv: str) -> None:
    _put(file, f'#!/bin/sh\nexec {shlex.join(argv)} "$@"')
    file.chmod(0o755)


def _put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n", encoding="ascii")


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute(), INSTANCES[sys.argv[2]])
