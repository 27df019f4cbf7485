"""Executions and errors that the device counted, before and after: proof that it ran.

Sysfs counts since the driver was loaded and of all processes; neuron-monitor counts of one
process in one period. Until driver 2.30 a process's counts reach sysfs when it ends, so the
second snapshot is taken after a launch is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from trn_validate.base import Record
from trn_validate.check import Check, none_found
from trn_validate.errors import MeasurementError
from trn_validate.neuron.stream import Tally
from trn_validate.neuron.sysfs import DEVICES, SUCCESS, read_sysfs

EXECUTIONS = "executions on the device"
NUMERICAL = "numerical errors on the device"
HARDWARE = "hardware errors on the device"
FAILED = "execution errors on the device"
CHECKS = (EXECUTIONS, NUMERICAL, HARDWARE, FAILED)

Kind = Literal["numerical", "hardware", "failed"]

COMPLETED = "completed"
"""How neuron-monitor calls an execution that succeeded."""

_NUMERICAL = frozenset({"execute_completed_with_num_error", "infer_completed_with_num_error"})
"""The first is the driver's name for it, the second the vendor's sysfs guide's."""
_REPAIRED = frozenset({"hw_repairable_hbm_ue_error"})
"""Counted in sysfs though the result was right."""


class Snapshot(Record):
    """Cumulative counts of every core and device, by ``device.core.status``."""

    counts: dict[str, int]

    @property
    def successes(self) -> int:
        """Executions that completed, of all cores."""
        return sum(n for key, n in self.counts.items() if key.endswith(f".{SUCCESS}"))


class Ran(Record):
    """What happened on the device between two moments."""

    source: str
    before: int
    """Executions that had completed; 0 where only those since then are counted."""
    after: int
    numerical: dict[str, int] = Field(default_factory=dict)
    """Errors by their counter; only those that occurred."""
    hardware: dict[str, int] = Field(default_factory=dict)
    failed: dict[str, int] = Field(default_factory=dict)

    @property
    def errors(self) -> dict[str, int]:
        """All errors by their counter."""
        return self.numerical | self.hardware | self.failed


def snapshot(root: Path) -> Snapshot | None:
    """Read the counters below ``root``; None where a core or its successes cannot be read."""
    sysfs = read_sysfs(root)
    if sysfs is None:
        return None
    counts: dict[str, int] = {}
    for device in sysfs.devices:
        if not device.cores or any(SUCCESS not in status for status in device.cores.values()):
            return None
        counts |= {f"{device.index}.ecc.{name}": count for name, count in device.ecc.items()}
        for core, status in device.cores.items():
            counts |= {f"{device.index}.{core}.{name}": count for name, count in status.items()}
    return Snapshot(counts=counts)


def between(before: Snapshot, after: Snapshot) -> Ran:
    """What sysfs counted between two snapshots.

    Raises:
        MeasurementError: a counter is gone or went back, so the driver was loaded again, or
            somebody cleared it.
    """
    lost = sorted(set(before.counts) - set(after.counts))
    back = sorted(k for k, n in before.counts.items() if after.counts.get(k, n) < n)
    if lost or back:
        how = f"{lost[0]} is gone" if lost else f"{back[0]} went back"
        todo = "Run the stage again; let nobody reload the driver or write to its counters."
        raise MeasurementError(f"the device's counters are not one series: {how}", todo=todo)
    grown = {key: count - before.counts.get(key, 0) for key, count in after.counts.items()}
    return Ran(
        source="sysfs",
        before=before.successes,
        after=after.successes,
        **_by_kind((key, _kind_in_sysfs(key), count) for key, count in grown.items()),
    )


def summed(tallies: Iterable[Tally]) -> Ran:
    """What neuron-monitor counted of some processes; their last period may be missing.

    Raises:
        MeasurementError: it counted nothing of them, or had no counts in some period.
    """
    every = list(tallies)
    unread = [tally.pid for tally in every if tally.unread]
    if unread or not any(tally.periods for tally in every):
        why = f"no counts of pid {unread[0]} in some period" if unread else "no records of them"
        raise MeasurementError(
            f"neuron-monitor cannot tell what ran: {why}",
            todo="Run neuron-monitor by hand beside a launch and read what it prints.",
        )
    counts = (
        (f"pid {tally.pid}: {name}", _kind_of_monitor(name), count)
        for tally in every
        for name, count in (*tally.executions.items(), *tally.errors.items())
    )
    return Ran(
        source="neuron-monitor",
        before=0,
        after=sum(tally.executions.get(COMPLETED, 0) for tally in every),
        **_by_kind(counts),
    )


def what_ran(
    before: Snapshot | None, after: Snapshot | None, tallies: Iterable[Tally]
) -> tuple[Ran, ...]:
    """What each source that can be read says, sysfs first.

    Raises:
        MeasurementError: neither can be read, or sysfs could be read before and not after.
    """
    if before is not None:
        if after is None:
            raise MeasurementError(
                "the device's counters are gone",
                where=f"/{DEVICES}",
                todo="Look at dmesg: the driver was unloaded, or the device has failed.",
            )
        first = between(before, after)
        try:
            return first, summed(tallies)
        except MeasurementError:
            return (first,)
    try:
        return (summed(tallies),)
    except MeasurementError as error:
        raise MeasurementError(
            f"neither sysfs nor neuron-monitor tells what ran on the device ({error})",
            where=f"/{DEVICES}",
            todo="Install aws-neuronx-tools, or let this user read the driver's counters.",
        ) from None


def judge(ran: tuple[Ran, ...]) -> tuple[Check, ...]:
    """The four checks: the device ran, and nothing went wrong on it in any source."""
    first = ran[0]
    grew = Check(
        name=EXECUTIONS,
        measured=first.after,
        comparator=">",
        limit=first.before,
        source="derived",
        detail=f"counted by {first.source}",
    )
    kinds = ((NUMERICAL, "numerical"), (HARDWARE, "hardware"), (FAILED, "failed"))
    return (grew, *(_none(name, [getattr(one, kind) for one in ran]) for name, kind in kinds))


def _none(name: str, counted: list[dict[str, int]]) -> Check:
    # Both sources count the same events, so the larger sum counts, not the sum of both.
    worst = max(counted, key=lambda counts: sum(counts.values()))
    shown = ", ".join(f"{key}: {count}" for key, count in sorted(worst.items())[:8])
    return none_found(name, sum(worst.values()), shown)


def _by_kind(counts: Iterable[tuple[str, Kind | None, int]]) -> dict[Kind, dict[str, int]]:
    kinds: dict[Kind, dict[str, int]] = {}
    for key, kind, count in counts:
        if kind is not None and count:
            kinds.setdefault(kind, {})[key] = count
    return kinds


def _kind_in_sysfs(key: str) -> Kind | None:
    """Of which kind a counter is; None where it counts no error."""
    status = key.rpartition(".")[2]
    if ".ecc." in key:
        return "hardware" if "uncorrected" in status and "repairable" not in status else None
    if status == SUCCESS or status in _REPAIRED:
        return None
    if status in _NUMERICAL:
        return "numerical"
    return "hardware" if status.startswith("hw_") else "failed"


def _kind_of_monitor(name: str) -> Kind | None:
    # transient are ECC corrections, after which the result is right (the guide).
    if name in (COMPLETED, "transient"):
        return None
    if "num" in name:
        return "numerical"
    return "hardware" if name == "hardware" else "failed"
