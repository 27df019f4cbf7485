"""What the rehearsal is told by variables of the environment; docs/rehearsal.md explains each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "NEURON_REHEARSAL_"
NAMES = frozenset({"FAULT", "FAULT_RANK", "LIMITS", "MEMORY_GB", "BUSY", "STRICT_INIT"})
LIMITS = frozenset({"even_alltoall", "even_alltoall_list", "no_0d_allgather", "default_barrier"})
"""Limits of collectives that were reported of neuron."""
WAYS = frozenset({"raise", "zero", "nan", "scale", "fallback", "skip", "hang", "segv"})
"""In which an operation or a collective can misbehave."""
AUTOLOAD = "autoload"
_CORE_GB = 24.0
"""Memory of a logical core of a Trn2 at LNC 2."""


@dataclass(frozen=True)
class Settings:
    """One process's share of them."""

    faults: Mapping[str, tuple[str, int]]
    """By operation or collective: how it misbehaves, and from which call on."""
    limits: frozenset[str]
    memory_bytes: int
    """Of one core."""
    strict_init: bool
    """Refuse a process group after the device was used, as the vendor's package does."""
    broken: bool
    """Fail while ``import torch`` loads the backend."""


def read(environment: Mapping[str, str]) -> Settings:
    """Read the variables.

    Raises:
        ValueError: one of them is unknown or says nothing that is known, so that no
            misbehaviour is asked for in vain.
    """
    given = {
        name.removeprefix(PREFIX): value
        for name, value in environment.items()
        if name.startswith(PREFIX)
    }
    if unknown := given.keys() - NAMES:
        raise ValueError(f"{PREFIX}{min(unknown)} is unknown; there are {', '.join(sorted(NAMES))}")
    faults = dict(map(_fault, _listed(given.get("FAULT", ""))))
    limits = frozenset(_listed(given.get("LIMITS", "")))
    if not limits <= LIMITS:
        raise ValueError(f"{PREFIX}LIMITS has {min(limits - LIMITS)!r}; known: {sorted(LIMITS)}")
    if given.get("FAULT_RANK", "") not in ("", environment.get("RANK", "0")):
        faults = {}
    broken = faults.pop(AUTOLOAD, None) is not None
    memory = float(given.get("MEMORY_GB") or _CORE_GB)
    return Settings(
        faults=faults,
        limits=limits,
        memory_bytes=int(memory * 2**30),
        strict_init=given.get("STRICT_INIT") == "1",
        broken=broken,
    )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _fault(item: str) -> tuple[str, tuple[str, int]]:
    name, _, how = item.partition("=")
    how, _, first = how.partition("@")
    if how not in WAYS or not (first or "1").isdigit():
        raise ValueError(f"{PREFIX}FAULT has {item!r}; it takes NAME=WAY@CALL, {sorted(WAYS)}")
    return name, (how, int(first or 1))
