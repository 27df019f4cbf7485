"""Launches on this machine, each under a supervisor of its own.

The supervisor (:mod:`trn_validate.supervisor`) bounds and ends the launch; this side writes the
order, waits, and judges what the supervisor and the ranks wrote. Nothing global is installed: a
signal that ends the pipeline has to be raised as an exception in the thread that waits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass

from trn_validate import processes
from trn_validate.classify import classify
from trn_validate.errors import Interrupted, MeasurementError
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.starting import begin, ending_seconds, give_order, order_of, starting
from trn_validate.supervisor import FACTS, LOG, Facts


@dataclass(frozen=True, kw_only=True)
class _Running:
    request: LaunchRequest
    launch_id: str
    supervisor: subprocess.Popen[bytes]
    began: float


class LocalLauncher:
    """A :class:`trn_validate.launch.Launcher` for processes of this machine."""

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Carry out ``request``; returns only when nothing of it is alive.

        Raises:
            Interrupted: the pipeline got a signal; the launch was ended first.
            FolderError: an earlier launch has used the folder.
            MeasurementError: it could not be started, or a process of it could not be ended.
        """
        return self.together((request,))[0]

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """Carry out several at once; whatever ends one wait early ends all of them."""
        running: list[_Running] = []
        try:
            # A plain loop: were they collected at the end, an interrupt would lose the first.
            for request in requests:
                running.append(_start(request))  # noqa: PERF401
            facts = [_wait(one) for one in running]
        except BaseException:
            _end(running)
            raise
        for one in running:
            _assert_gone(one)
        return tuple(classify(one.request, fact) for one, fact in zip(running, facts, strict=True))


def _start(request: LaunchRequest) -> _Running:
    launch_id = uuid.uuid4().hex
    with starting(request):
        give_order(request, request.folder, order_of(request, launch_id))
        argv = [sys.executable, "-m", "trn_validate.supervisor", str(request.folder)]
        supervisor = begin(argv, request.folder / LOG)
    return _Running(
        request=request, launch_id=launch_id, supervisor=supervisor, began=time.monotonic()
    )


def _wait(one: _Running) -> Facts:
    until = one.began + one.request.wall_seconds + ending_seconds(one.request)
    try:
        status = one.supervisor.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(one)
        return Facts(ended="wall", seconds=time.monotonic() - one.began)
    try:
        return Facts(**json.loads((one.request.folder / FACTS).read_text(encoding="utf-8")))
    except OSError:
        # Without its facts the supervisor did not come to its end, so its launch may live.
        leftovers, left = processes.end(one.launch_id)
    return Facts(
        ended="lost",
        exit_status=status if status >= 0 else 128 - status,
        seconds=time.monotonic() - one.began,
        leftovers=leftovers,
        alive=left,
    )


def _end(running: list[_Running]) -> None:
    """End all at once, whatever comes between."""
    for one in running:
        one.supervisor.terminate()
    try:
        for one in running:
            one.supervisor.wait(ending_seconds(one.request))
    except (subprocess.TimeoutExpired, KeyboardInterrupt, Interrupted):
        # Too slow, or the user insists: the first reason to end is still the one to tell.
        pass
    for one in running:
        _kill(one)


def _kill(one: _Running) -> None:
    # Closes the pipe too.
    with one.supervisor:
        one.supervisor.kill()
    processes.end(one.launch_id)


def _assert_gone(one: _Running) -> None:
    with one.supervisor:
        left = processes.alive(one.launch_id)
    if left:
        raise MeasurementError(
            f"processes {', '.join(map(str, left))} do not end",
            where=one.request.name,
            todo="They hold what they hold until the machine restarts; see their state in ps.",
        )
