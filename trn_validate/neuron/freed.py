"""A launcher that sees the cores free before and after every launch.

A core that a dead launch still holds makes the next one fail with a text that names neither. So it
is told where it happens, with the process that holds it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from trn_validate.launch import Launcher, LaunchRequest, LaunchResult
from trn_validate.neuron.holders import Holder, holders, judge_holders
from trn_validate.neuron.neuron_ls import NAME, Listing, parse_devices
from trn_validate.neuron.tools import Tools
from trn_validate.stage import Unmeasured
from trn_validate.verdict import Problem

FREED_SECONDS = 30.0
"""Guess: so long after the last process has gone the driver has let go of its cores."""

_PAUSE = 0.5
CAUSE = "cores_held"


@dataclass(frozen=True)
class Freed:
    """Carries launches out by ``inner``, one after the other, on the devices below ``root``.

    Never two at once: each would take the core of its LOCAL_RANK, so both that of rank 0.
    """

    inner: Launcher
    root: Path
    seconds: float = FREED_SECONDS

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Carry out ``request`` between two looks at the cores.

        Raises:
            Unmeasured: a core is held by another process before it, or still after it.
        """
        if held := self._held():
            raise Unmeasured(Problem(cause=CAUSE, what=f"before {request.name}: {held}"))
        (result,) = self.inner.together((request,))
        held = self._held()
        if not held:
            return result
        if result.cause.usable:
            raise Unmeasured(Problem(cause=CAUSE, what=f"after {request.name}: {held}"))
        # How it failed says more than what it left; both are told.
        return replace(result, what=f"{result.what}; {held}" if result.what else held)

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """Carry out each of them alone, in the order given."""
        return tuple(self.launch(request) for request in requests)

    def _held(self) -> str:
        """Who still holds a core when the time is up; empty where nobody does."""
        until = time.monotonic() + self.seconds
        while left := look(self.root):
            if time.monotonic() >= until:
                return "; ".join(f"{one.what}; {one.todo}" for one in judge_holders(left))
            time.sleep(_PAUSE)
        return ""


def look(root: Path) -> tuple[Holder, ...]:
    """Processes that hold a device now, by neuron-ls where it answers, and by /proc."""
    devices = parse_devices(Tools(root).ask(NAME, "-j")).value
    return holders(Listing(devices=devices) if devices is not None else None, root)
