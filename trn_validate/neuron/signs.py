"""What of a Trn2 the host shows before any tool or package is trusted.

More of it (sysfs counters, neuron-ls, holders of cores, ECC) is not read yet; what is here is
enough to tell a device that is there from one that is not.
"""

from __future__ import annotations

from pathlib import Path

from trn_validate.target import CHIPS, TRN2, Signs

TRN2_DEVICE = next(device for device, chip in CHIPS.items() if chip == TRN2)


def trn2_functions(signs: Signs) -> int:
    """PCI functions with Trn2's vendor and device number."""
    return signs.pci.get(TRN2_DEVICE, 0)


def driver_version(root: Path) -> str:
    """Version of the loaded driver, or empty; /sys/module/neuron/version is what libnrt reads."""
    try:
        return (root / "sys/module/neuron/version").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
