"""The one place that reaches into torchtitan: its device on a machine without an accelerator.

torchtitan 0.3.0 decides its device while ``torchtitan.tools.utils`` is imported and has no
branch, variable or field for the CPU; other modules copy the two names as they are imported.
So they are set here, before anything else of torchtitan is loaded. With an accelerator nothing
is set: what torchtitan found is compared with the plan, since it falls back to "cuda" silently.
"""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import torch


class _Properties:
    """What torchtitan reads of a device's properties."""

    name = "cpu"

    def __init__(self) -> None:
        self.total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class CpuDeviceModule(types.ModuleType):
    """``torch.cpu`` with the calls that torchtitan makes on a device module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: object = None) -> str:
        """Name for the log."""
        return "cpu"

    def get_device_properties(self, device: object = None) -> _Properties:
        """Name and total memory in bytes."""
        return _Properties()

    def current_device(self) -> int:
        """An index, where ``torch.cpu`` gives a text."""
        return 0

    def empty_cache(self) -> None:
        """There is no cache."""

    def reset_peak_memory_stats(self, device: object = None) -> None:
        """Reset the kernel's high-water mark of this process, where it may be."""
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            # The peak then covers the whole run, which is an upper bound.
            return

    def memory_stats(self, device: object = None) -> dict[str, int]:
        """Resident bytes now and at their peak, under the names of an accelerator's allocator."""
        resident = _resident()
        return {
            "active_bytes.all.peak": resident["VmRSS"],
            "reserved_bytes.all.peak": resident["VmHWM"],
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }


def _resident() -> dict[str, int]:
    found = {"VmRSS": 0, "VmHWM": 0}
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        key, _, rest = line.partition(":")
        if key in found:
            found[key] = int(rest.split()[0]) * 1024
    return found


def install(device: str) -> None:
    """Make torchtitan use ``device``, or refuse to start.

    Raises:
        RuntimeError: torchtitan would use another device than the plan's.
    """
    import torchtitan.tools.utils as utils

    if device == "cpu":
        utils.device_type = "cpu"
        utils.device_module = CpuDeviceModule("cpu_device_module")
    elif utils.device_type != device:
        raise RuntimeError(
            f"the plan's device is {device}, but torchtitan would use {utils.device_type}: "
            "the backend that registers it did not load"
        )
