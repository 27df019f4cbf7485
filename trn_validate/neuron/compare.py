"""All sources against each other and against the plan's profile, as checks.

A check is left out where no source can answer it; a stage that owes it is then not passed.
"""

from __future__ import annotations

from collections.abc import Mapping

from trn_validate.check import Check, Comparator
from trn_validate.config import Profile
from trn_validate.neuron.finding import Finding, found, none_of
from trn_validate.neuron.host import HostFacts
from trn_validate.target import TARGETS, Signs

DRIVER, LS = "driver and kernel module", "neuron-ls"
AGREE, LNC, HELD = "contradictions between sources", "LNC", "cores held by other processes"
DEVICES, CORES, MEMORY = "devices of neuron-ls", "logical cores", "memory of a logical core"
INSTANCE, ECC, MONITOR = "instance type", "hardware errors counted", "neuron-monitor"
LOGGED = "hardware errors in the kernel log"

CHECKS = (DRIVER, LS, MONITOR, INSTANCE, DEVICES, CORES, LNC, MEMORY, AGREE, HELD, ECC)
"""What is owed; the kernel's log is not, since many hosts let only root read it."""

_PREFIXES = {
    DRIVER: ("driver_", "module_", "dkms_", "kernel_headers_"),
    HELD: ("cores_held",),
}
_TOOL = ("tool_",)


def device_checks(
    facts: HostFacts, profile: Profile, signs: Signs
) -> tuple[list[Check], tuple[Finding, ...]]:
    """Checks of what the host shows, and every finding that they rest on."""
    told = (
        *facts.findings,
        *_contradictions(facts, signs),
        *_lnc_contradictions(facts),
        *_faulty(facts),
    )
    checks = [
        *(none_of(name, _of(told, prefixes)) for name, prefixes in _PREFIXES.items()),
        *(none_of(tool, _of(told, _TOOL, tool)) for tool in (LS, MONITOR)),
        none_of(AGREE, [f for f in told if f.id in ("sources_contradict", "lnc_contradicts")]),
        *_against_profile(facts, profile, signs),
    ]
    if counted(facts):
        worn = ("uncorrected_ecc", "unhealthy_component")
        checks.append(none_of(ECC, [f for f in told if f.id in worn]))
    if facts.kernel_log is not None:
        checks.append(none_of(LOGGED, [f for f in told if f.id == "hardware_error_logged"]))
    return checks, told


def counted(facts: HostFacts) -> bool:
    """Whether ECC counters could be read of every device from one of the two sources."""
    by_driver = facts.sysfs is not None and all(device.ecc for device in facts.sysfs.devices)
    sample = facts.sample
    by_tool = sample is not None and bool(sample.ecc) and len(sample.ecc) == sample.devices
    return by_driver or by_tool


def _against_profile(facts: HostFacts, profile: Profile, signs: Signs) -> list[Check]:
    told = (_named(signs), *(one.instance_type for one in (facts.listing, facts.sample) if one))
    kind = next((_target(kind) for kind in told if kind), "")
    checks = [_config(INSTANCE, kind, profile.instance_type)] if kind else []
    if facts.listing is None:
        return checks
    listed = facts.listing.devices
    each = min((d.memory_bytes / max(1, d.cores) for d in listed), default=0.0) / 2**30
    checks.append(_config(DEVICES, len(listed), profile.devices))
    checks.append(_config(CORES, sum(device.cores for device in listed), profile.cores))
    # Where the tool tells none, it tells how many cores there are; the check is left out.
    if lncs := facts.listing.lncs:
        wrong = next((lnc for lnc in lncs if lnc != profile.logical_nc_config), lncs[0])
        checks.append(_config(LNC, wrong, profile.logical_nc_config))
    checks.append(_config(MEMORY, each, profile.memory_gib_per_core, ">=", "GiB"))
    return checks


def _target(kind: str) -> str:
    """The target of an instance type: two that differ in their network alone have one."""
    return TARGETS.get(kind.lower(), kind)


def _named(signs: Signs) -> str:
    """Instance type by DMI, where it names one; a hypervisor writes other things there."""
    return signs.product_name if signs.product_name.lower() in TARGETS else ""


def _contradictions(facts: HostFacts, signs: Signs) -> tuple[Finding, ...]:
    """Devices, cores, memory and type as each source tells them; what is empty tells nothing."""
    listing, sample, sysfs = facts.listing, facts.sample, facts.sysfs
    if sample is not None and sample.error:
        sample = None
    first = next(iter(listing.devices), None) if listing else None
    devices = {
        "PCI": signs.trn2_functions or None,
        "/dev": len(signs.dev_nodes) or None,
        "sysfs": len(sysfs.devices) if sysfs else None,
        "neuron-ls": len(listing.devices) if listing else None,
        "neuron-monitor": sample.devices if sample else None,
    }
    cores = {
        "neuron-ls": first.cores if first else None,
        "neuron-monitor": sample.cores_per_device if sample else None,
    }
    memory = {
        "neuron-ls": first.memory_bytes if first else None,
        "neuron-monitor": sample.memory_bytes if sample else None,
    }
    kinds = {
        "DMI": _named(signs),
        "neuron-ls": listing.instance_type if listing else "",
        "neuron-monitor": sample.instance_type if sample else "",
    }
    told = (
        _apart("devices", devices),
        _apart("logical cores a device", cores),
        _apart("memory of a device", memory),
        _apart("instance type", {source: _target(kind) or None for source, kind in kinds.items()}),
    )
    return (*filter(None, told), *_physical(facts))


def _apart(what: str, by_source: Mapping[str, int | str | None]) -> Finding | None:
    said = {source: value for source, value in by_source.items() if value is not None}
    if len(set(said.values())) < 2:
        return None
    text = ", ".join(f"{source} {value}" for source, value in said.items())
    return found("sources_contradict", f"{what}: {text}", " and ".join(said))


def _physical(facts: HostFacts) -> tuple[Finding, ...]:
    """Cores of sysfs and of neuron-ls: no document shows whether the driver's are physical."""
    if facts.sysfs is None or facts.listing is None:
        return ()
    physical = {d.index: d.core_count for d in facts.sysfs.devices if d.core_count}
    told = []
    for device in facts.listing.devices:
        lnc = device.lnc or facts.listing.lnc
        counts = physical.get(device.index)
        if lnc and counts and counts not in (device.cores, device.cores * lnc):
            what = (
                f"device {device.index}: {device.cores} cores at LNC {lnc}, and {counts} in sysfs"
            )
            told.append(found("sources_contradict", what, "neuron-ls and sysfs"))
    return tuple(told)


def _lnc_contradictions(facts: HostFacts) -> tuple[Finding, ...]:
    said = {"neuron-ls": str(facts.listing.lncs[0])} if facts.listing and facts.listing.lncs else {}
    if facts.sample is not None and facts.sample.lnc is not None:
        said["neuron-monitor"] = str(facts.sample.lnc)
    # A variable of this process wins over the file, and the tools know neither of them for sure.
    if facts.lnc_variable:
        said["environment"] = facts.lnc_variable
    elif facts.lnc_file is not None:
        said["/opt/aws/neuron/logical_nc_config"] = str(facts.lnc_file)
    if len(set(said.values())) < 2:
        return ()
    text = ", ".join(f"{source} {value}" for source, value in said.items())
    return (found("lnc_contradicts", text, " and ".join(said)),)


def _faulty(facts: HostFacts) -> tuple[Finding, ...]:
    """Devices whose counters or health say that the hardware is at fault."""
    counts = dict(facts.sample.ecc) if facts.sample else {}
    told = []
    for device in facts.sysfs.devices if facts.sysfs else ():
        counts[device.index] = counts.get(device.index, {}) | device.ecc
        if device.unhealthy:
            what = f"device {device.index}: {', '.join(device.unhealthy)}"
            told.append(found("unhealthy_component", what, "health_status/unhealthy_components"))
    for index, by_name in sorted(counts.items()):
        for name, count in sorted(by_name.items()):
            if count and "uncorrected" in name:
                kind = "repairable_ecc" if "repairable" in name else "uncorrected_ecc"
                told.append(found(kind, f"device {index}: {name} is {count}", "ECC counters"))
    return tuple(told)


def _of(told: tuple[Finding, ...], prefixes: tuple[str, ...], where: str = "") -> list[Finding]:
    return [f for f in told if f.id.startswith(prefixes) and f.where.startswith(where)]


def _config(
    name: str,
    measured: int | float | str,
    limit: int | float | str | None,
    comparator: Comparator = "==",
    unit: str = "",
) -> Check:
    """A check against the profile; a profile of a device that states no value is refused."""
    if limit is None:
        raise ValueError(f"the profile states no value for {name}")
    return Check(
        name=name, measured=measured, comparator=comparator, limit=limit, source="config", unit=unit
    )
