"""Checks on a launch whose model calls kernels: all of it does, and as often as it has to."""

from __future__ import annotations

from collections.abc import Iterator

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.launching import Trial
from trn_validate.records import Kernels


def use_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`use_checks` makes."""
    what = ("provider of kernels", "modules without their kernel", "launches of kernels")
    return tuple(f"{name}: {part}" for part in what)


def use_checks(plan: Plan, trial: Trial) -> list[Check]:
    """Whether the kernels that were asked for are what the model called, on every rank.

    A kernel that fell back to its reference was not launched, and fails here alone.
    """
    provider, modules, launches = use_names(trial.spec.name)
    found = {rank: record.kernels for rank, record in trial.records.ranks.items()}
    lines = {rank: line for rank, line in found.items() if line is not None}
    silent = [f"rank {rank} left no record of its kernels" for rank in found if rank not in lines]
    without = [*silent, *_without(trial, lines)]
    wrong = [*silent, *_miscounted(trial, lines)]
    return [
        _provider(provider, plan, lines),
        _none(modules, without, len(lines)),
        _none(launches, wrong, len(lines)),
    ]


def _provider(name: str, plan: Plan, lines: dict[int, Kernels]) -> Check:
    """On a device nothing else counts; elsewhere what there is, which the detail names."""
    neuron = plan.profile.device == "neuron"
    names = sorted({line.provider for line in lines.values()})
    reasons = next((line.reason for line in lines.values()), "")
    return Check(
        name=name,
        measured=" and ".join(names) or "none",
        comparator="==" if neuron else "!=",
        limit="device" if neuron else "none",
        source="config",
        detail=reasons,
    )


def _without(trial: Trial, lines: dict[int, Kernels]) -> Iterator[str]:
    for rank, line in lines.items():
        for name in (use.name for use in trial.spec.kernels):
            yield from (f"{module} of rank {rank} ({name})" for module in line.left.get(name, ()))
            if not line.replaced.get(name):
                yield f"{name} replaces nothing on rank {rank}"


def _miscounted(trial: Trial, lines: dict[int, Kernels]) -> Iterator[str]:
    spec = trial.spec
    passes = spec.steps * spec.accumulation
    # Recomputing calls the forward again, for some of the modules.
    exact = spec.activation_checkpointing == "none"
    for rank, line in lines.items():
        for use in spec.kernels:
            modules = len(line.replaced.get(use.name, ()))
            for launched, count in use.launches.items():
                owed = count * modules * passes
                got = line.launches.get(launched, 0)
                if spec.compiled is not None and line.provider == "device":
                    # What a graph launches on a device, Python does not see: only what went in.
                    if not got and not line.traced.get(launched):
                        yield f"{launched} of rank {rank} is in no graph"
                    continue
                if got < max(owed, 1) or (exact and got != owed):
                    yield f"{launched} of rank {rank}: {got} launches, {owed} owed"


def _none(name: str, odd: list[str], ranks: int) -> Check:
    rest = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
    return Check(
        name=name,
        measured=len(odd) if ranks else max(1, len(odd)),
        comparator="==",
        limit=0,
        source="derived",
        detail=f"{odd[0]}{rest}" if odd else f"{ranks} ranks",
    )
