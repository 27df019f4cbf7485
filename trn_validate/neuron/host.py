"""Everything that a host shows of its Neuron devices, read once, and where it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trn_validate.base import Record
from trn_validate.neuron.driver import Driver, judge_driver, read_driver
from trn_validate.neuron.files import held
from trn_validate.neuron.finding import Finding, found
from trn_validate.neuron.holders import Holder, holders, judge_holders
from trn_validate.neuron.kernel_log import KernelLog, read_kernel_log
from trn_validate.neuron.neuron_ls import Listing, list_devices
from trn_validate.neuron.neuron_monitor import Sample, take_sample
from trn_validate.neuron.sysfs import Sysfs, read_sysfs
from trn_validate.neuron.tools import Ask

LNC_FILE = "opt/aws/neuron/logical_nc_config"
"""File that sets the LNC of a host (deploy/eks/prerequisites of the vendor's guide)."""

LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
_LNC_OLDER = "NEURON_RT_VIRTUAL_CORE_SIZE"
"""Its name in older releases (a user's report)."""


class HostFacts(Record):
    """One field for each source; None where it gave nothing, and then a finding says why."""

    driver: Driver
    sysfs: Sysfs | None
    listing: Listing | None
    sample: Sample | None
    kernel_log: KernelLog | None
    holders: tuple[Holder, ...]
    lnc_file: int | None
    lnc_variable: str
    findings: tuple[Finding, ...]


def read_host(root: Path, ask: Ask, environment: Mapping[str, str]) -> HostFacts:
    """Ask every source; nothing that one of them does ends this."""
    driver, listing = read_driver(root, ask), list_devices(ask)
    sample, log, sysfs = take_sample(ask), read_kernel_log(ask), read_sysfs(root)
    holding = holders(listing.value, root)
    unreadable = sysfs.unreadable if sysfs else ()
    told = (*judge_driver(driver), *listing.findings, *sample.findings, *log.findings)
    return HostFacts(
        driver=driver,
        sysfs=sysfs,
        listing=listing.value,
        sample=sample.value,
        kernel_log=log.value,
        holders=holding,
        lnc_file=_lnc_file(root),
        lnc_variable=environment.get(LNC_VARIABLE) or environment.get(_LNC_OLDER, ""),
        findings=(*told, *_unreadable(unreadable), *judge_holders(holding)),
    )


def _unreadable(files: tuple[str, ...]) -> tuple[Finding, ...]:
    if not files:
        return ()
    what = f"{len(files)} files, first {files[0]}"
    return (found("sysfs_unreadable", what, "/sys", raw="\n".join(files)),)


def _lnc_file(root: Path) -> int | None:
    text = held(root / LNC_FILE) or ""
    values = [line.partition("=")[2].strip() for line in text.splitlines() if LNC_VARIABLE in line]
    return int(values[-1]) if values and values[-1] in ("1", "2") else None
