"""Launches over the nodes of a Slurm allocation.

The pipeline neither asks for nodes nor gives them back; it runs inside an allocation, and each of
its launches is a step of that job (:mod:`trn_validate.slurm_step`).
"""

from __future__ import annotations

from collections.abc import Sequence

from trn_validate.allocation import Allocation
from trn_validate.classify import classify_shares
from trn_validate.errors import MeasurementError
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.launch_local import LocalLauncher
from trn_validate.slurm_step import Step, start


class SlurmLauncher:
    """A :class:`trn_validate.launch.Launcher` for the nodes of one allocation.

    Args:
        port: of the rendezvous; None takes one that is free on the node that holds it.
    """

    def __init__(self, allocation: Allocation, port: int | None = None) -> None:
        self.allocation = allocation
        self.port = port
        self.local = LocalLauncher()

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Carry out ``request``; returns only when nothing of it is alive on any node.

        Raises:
            Interrupted: the pipeline got a signal; the launch was ended first.
            FolderError: an earlier launch has used the folder.
            MeasurementError: it could not be started, or a process of it could not be ended.
        """
        return self.together((request,))[0]

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """Carry out several at once, but for those that would want the same port.

        Whatever ends the wait for one early ends all of them.
        """
        near = [r for r in requests if r.nodes == 1 and self.allocation.here is not None]
        far = [r for r in requests if r not in near]
        alone = [r for r in far if r.nodes > 1 and self.port is not None]
        done = dict(zip(map(id, near), self.local.together(tuple(near)), strict=True))
        for batch in ([r for r in far if r not in alone], *([one] for one in alone)):
            done |= dict(zip(map(id, batch), self._carry_out(batch), strict=True))
        return tuple(done[id(request)] for request in requests)

    def _carry_out(self, requests: Sequence[LaunchRequest]) -> list[LaunchResult]:
        steps: list[Step] = []
        try:
            # A plain loop: were they collected at the end, an interrupt would lose the first.
            for request in requests:
                nodes = self.allocation.take(request.nodes)
                steps.append(start(nodes, request, self.port))
            for step in steps:
                step.wait()
        finally:
            # All are asked before any is waited for, so that they end in one time of grace.
            for step in steps:
                step.ask_to_end()
            for step in steps:
                step.end()
        return [_result(step) for step in steps]


def _result(step: Step) -> LaunchResult:
    """How a step went that has ended.

    Raises:
        MeasurementError: a process of it could not be ended.
    """
    shares = step.shares()
    alive = [f"{pid} on {s.node}" for s in shares for pid in s.facts.alive]
    if alive:
        raise MeasurementError(
            f"processes {', '.join(alive)} do not end",
            where=step.request.name,
            todo="They hold what they hold until the node restarts; see their state in ps.",
        )
    missing = step.missing()
    return step.lost(missing) if missing else classify_shares(step.request, shares)
