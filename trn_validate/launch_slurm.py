"""Launches over the nodes of a Slurm allocation.

The pipeline neither asks for nodes nor gives them back; it runs inside an allocation, and each of
its launches is a step of that job (:mod:`trn_validate.slurm_step`).
"""

from __future__ import annotations

from trn_validate.allocation import Allocation
from trn_validate.classify import classify_shares
from trn_validate.errors import MeasurementError
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.launch_local import LocalLauncher
from trn_validate.slurm_step import start


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
        """Carry out several; those that take more than this machine one after the other."""
        near = [r for r in requests if r.nodes == 1 and self.allocation.here is not None]
        done = dict(zip(map(id, near), self.local.together(tuple(near)), strict=True))
        for request in requests:
            if id(request) not in done:
                done[id(request)] = self._carry_out(request)
        return tuple(done[id(request)] for request in requests)

    def _carry_out(self, request: LaunchRequest) -> LaunchResult:
        step = start(self.allocation.take(request.nodes), request, self.port)
        try:
            step.wait()
        except BaseException:
            step.end()
            raise
        step.end()
        shares = step.shares()
        alive = [f"{pid} on {s.node}" for s in shares for pid in s.facts.alive]
        if alive:
            raise MeasurementError(
                f"processes {', '.join(alive)} do not end",
                where=request.name,
                todo="They hold what they hold until the node restarts; see their state in ps.",
            )
        missing = step.missing()
        return step.lost(missing) if missing else classify_shares(request, shares)
