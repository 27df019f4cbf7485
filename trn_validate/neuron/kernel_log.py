"""Errors of the hardware in the kernel's log, which the driver writes there (nrt-troubleshoot)."""

from __future__ import annotations

import re

from trn_validate.base import Record
from trn_validate.neuron.finding import Read, found
from trn_validate.neuron.tools import Ask

HARDWARE = re.compile(r"^.*\bNEURON_HW_ERR=(\w+).*$", re.M)
"""Known: SRAM_, NC_, HBM_UNCORRECTABLE_ERROR and DMA_ERROR (the vendor's problem detector)."""


class KernelLog(Record):
    """What of it concerns the device."""

    hardware_errors: tuple[str, ...]


def read_kernel_log(ask: Ask) -> Read[KernelLog]:
    """Search dmesg; since the log is a ring, what is not in it may have happened all the same."""
    output = ask("dmesg")
    if output.ended != "exited" or output.status != 0:
        why = output.text.strip().splitlines()[-1:] or [output.ended]
        return Read(None, (found("kernel_log_unreadable", why[0], "dmesg", raw=output.text),))
    lines = [match[0].strip() for match in HARDWARE.finditer(output.stdout)]
    findings = tuple(found("hardware_error_logged", line, "dmesg", raw=line) for line in lines)
    return Read(KernelLog(hardware_errors=tuple(lines)), findings)
