"""Where things lie below the host root, as the host shows them; the standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HOST_ROOT = "TRN_VALIDATE_HOST_ROOT"
"""The product's variable that moves the root under which the host is read."""
MARK = "etc/neuron-rehearsal.json"
"""Says which instance is imitated; a host without this file is none of ours."""
CORES_PER_DEVICE = 4
"""Logical cores of a Trn2 at LNC 2."""
LNC = 2
DEVICE_BYTES = 96 * 2**30
DRIVER = "0.0.0+rehearsal"
"""No version that any release has."""
KERNEL = "0.0.0-rehearsal"
STATUSES = (
    "success",
    "timeout",
    "hw_error",
    "generic_error",
    "execute_completed_with_error",
    "execute_completed_with_num_error",
)
"""Of the driver's source; all but the first stay zero."""


@dataclass(frozen=True)
class Instance:
    """An instance type of the vendor's."""

    name: str
    devices: int

    @property
    def cores(self) -> int:
        """Logical cores."""
        return self.devices * CORES_PER_DEVICE


INSTANCES = {one.name: one for one in (Instance("trn2.3xlarge", 1), Instance("trn2.48xlarge", 16))}


def device_folder(root: Path, device: int) -> Path:
    """What the driver shows of a device."""
    return root / "sys/devices/virtual/neuron_device" / f"neuron{device}"


def counter(root: Path, core: int, status: str) -> Path:
    """The file that counts the executions of a logical core which ended so.

    The driver's cores are physical: those of a logical core are LNC neighbours, and the first
    stands for both.
    """
    device, index = divmod(core, CORES_PER_DEVICE)
    place = f"neuron_core{LNC * index}/stats/status/{status}/total"
    return device_folder(root, device) / place


def processes(root: Path) -> Path:
    """Folder with a file for each process that uses the device."""
    return root / "run/neuron"
