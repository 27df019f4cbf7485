"""Is the accelerator of the plan really here, and has the host what the plan needs?

No torch is imported. On a neuron target every source of the host is asked, held against the
plan's profile and against the others: PCI, /dev, the driver's sysfs, the vendor's tools, the
kernel's log and /proc (:mod:`trn_validate.neuron.device`).
"""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from trn_validate.base import Record
from trn_validate.check import Check, Comparator
from trn_validate.config import Plan
from trn_validate.ladder import resolve
from trn_validate.launch import LaunchRequest
from trn_validate.memory import available_gib
from trn_validate.observed import JUDGED
from trn_validate.processes import find_strays
from trn_validate.stage import Context, Family, Findings, Place
from trn_validate.target import TARGETS, Choice, Signs
from trn_validate.verdict import Problem

OPEN_FILES = 1024
"""Descriptors that torchrun and its ranks were seen to stay well under at 64 ranks."""

_HOST = ("usable cores", "memory for the widest rung", "free disk", "open files", "stray ranks")
_CPU = ("C++ compiler",)
_NEURON = ("PCI functions of a Trn2", "device nodes")


class HostSeen(Record):
    """What the host has for the ranks."""

    cores: int
    """That this process may use."""
    memory_gib: float
    """Available now."""
    disk_gib: float
    """Free where the run is."""
    open_files: int
    """Descriptors that a process may have."""
    strays: tuple[str, ...]
    """Ranks that an earlier run left behind."""


@dataclass(frozen=True)
class _DeviceStage:
    id: str = "environment.device"
    asks: str = "is the accelerator of the plan here, and has the host what the plan needs?"

    def reads(self, plan: Plan) -> object:
        """The profile, and how many ranks the rungs have."""
        return {"profile": plan.profile.model_dump(), "ranks": world_sizes(plan)}

    def external(self, plan: Plan) -> dict[str, str]:
        """Nothing."""
        return {}

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """Nothing is started."""
        return ()

    def run(self, context: Context) -> Findings:
        """Look at the host."""
        plan = context.plan
        neuron = plan.profile.device == "neuron"
        findings = Findings(expects=_HOST + (_NEURON if neuron else _CPU))
        choice = context.observer.see("choice", Choice, lambda: context.choice)
        findings.facts = {"signs": choice.signs.show(), "chosen": choice.reason}
        if neuron:
            findings.checks += sign_checks(plan, choice.signs)
            findings.problem = _absence(plan, choice.signs)
            if findings.problem is None:
                _examine(context, findings)
        else:
            findings.checks.append(compiler_check(context))
        seen = context.observer.see("host", HostSeen, lambda: see_host(context.run.folder))
        findings.checks += host_checks(plan, seen)
        return findings


def world_sizes(plan: Plan) -> tuple[int, ...]:
    """Processes of the plan's rungs on one node, each number once, in ascending order."""
    rungs = (rung for ladder in plan.ladders for rung in resolve(ladder))
    return tuple(sorted({rung.degrees.world_size // rung.nodes_in(plan) for rung in rungs}))


def see_host(folder: Path) -> HostSeen:
    """Look at cores, memory, disk, limits, and ranks that an earlier run left behind."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostSeen(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=available_gib(),
        disk_gib=shutil.disk_usage(folder).free / 2**30,
        # Unlimited is -1 to the system, and infinite is no measured number.
        open_files=soft if soft != resource.RLIM_INFINITY else 2**31,
        strays=tuple(f"pid {s.pid}: {' '.join(s.argv)[:60]}" for s in find_strays()),
    )


def host_checks(plan: Plan, seen: HostSeen) -> list[Check]:
    """Whether the host has what the plan's widest rung needs."""
    ranks = world_sizes(plan)[-1]
    need = ranks * plan.profile.memory_gib_per_core if plan.profile.device == "cpu" else 1.0
    left = "; ".join(seen.strays)
    return [
        _check("usable cores", seen.cores, ">=", 1, "derived"),
        _check(
            *("memory for the widest rung", seen.memory_gib, ">=", need, "config"),
            unit="GiB",
            detail=f"{ranks} ranks",
        ),
        _check("free disk", seen.disk_gib, ">=", plan.profile.disk_gib, "config", unit="GiB"),
        _check(
            *("open files", seen.open_files, ">=", OPEN_FILES, "derived"),
            detail="" if seen.open_files >= OPEN_FILES else "raise it with ulimit -n",
        ),
        _check(
            *("stray ranks", len(seen.strays), "==", 0, "derived"),
            detail=f"{left}; end them with kill -9" if left else "",
        ),
    ]


def compiler_check(context: Context) -> Check:
    """The compiler with which inductor builds torchtitan's attention mask on the CPU."""
    found = context.observer.see("C++ compiler", str, _compiler)
    return _check(
        *("C++ compiler", found, "!=", "none", "derived"),
        detail=""
        if found != "none"
        else "torch.compile needs one for the attention mask: install g++",
    )


def _compiler() -> str:
    """Name of the compiler that inductor would take."""
    wanted = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else ["g++", "clang++"])), None)
    return Path(found).name if found else "none"


def sign_checks(plan: Plan, signs: Signs) -> list[Check]:
    """What the host shows of the devices, before any tool is asked."""
    devices = plan.profile.devices or 1
    return [
        _check("PCI functions of a Trn2", signs.trn2_functions, "==", devices, "config"),
        _check("device nodes", len(signs.dev_nodes), "==", devices, "config"),
    ]


def _examine(context: Context, findings: Findings) -> None:
    """Add what the sources of a Neuron host say; only here are they loaded."""

    def look() -> Findings:
        from trn_validate.neuron.device import examine

        context.say("asking the driver and the Neuron tools")
        plan, private = context.plan, context.attempt.private
        sizes = world_sizes(plan)
        return examine(plan.profile, sizes, context.choice.signs, private, available_gib())

    seen = context.observer.see(f"{JUDGED}: the device's sources", Findings, look)
    findings.expects += seen.expects
    findings.checks += seen.checks
    findings.facts |= seen.facts
    findings.measures |= seen.measures
    findings.versions |= seen.versions


def _absence(plan: Plan, signs: Signs) -> Problem | None:
    """The plan's device is not here at all: another exit status than a check that failed."""
    if signs.trn2_functions or signs.dev_nodes or TARGETS.get(signs.product_name):
        return None
    return Problem(
        cause="device_absent",
        what=(
            f"the plan {plan.target} needs {plan.profile.devices} Trn2 devices, "
            f"and this host shows none: {signs.show()}"
        ),
    )


def _check(
    name: str,
    measured: int | float | str,
    comparator: Comparator,
    limit: int | float | str,
    source: str,
    *,
    unit: str = "",
    detail: str = "",
) -> Check:
    return Check.model_validate(
        {
            "name": name,
            "measured": measured,
            "comparator": comparator,
            "limit": limit,
            "source": source,
            "unit": unit,
            "detail": detail,
        }
    )


FAMILY = Family("environment.device", _DeviceStage.asks, lambda plan: (_DeviceStage(),))
