"""Launches on this machine, each under a supervisor of its own.

The supervisor (:mod:`trn_validate.supervisor`) bounds and ends the launch; this side writes the
order, waits, and judges what the supervisor and the ranks wrote. Nothing global is installed: a
signal that ends the pipeline has to be raised as an exception in the thread that waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from trn_validate import processes
from trn_validate.classify import classify
from trn_validate.errors import FolderError, Interrupted, MeasurementError
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.records import failure_file, rank_file
from trn_validate.supervisor import FACTS, LOG, ORDER, OUTPUT, Facts, Order, write

_DROPPED = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
_DROPPED_PREFIX = "TORCHELASTIC_"
_OVERDUE_SECONDS = 30.0
"""Beyond its own limits a supervisor gets so long before it is taken for stuck."""


@dataclass(frozen=True, kw_only=True)
class _Running:
    request: LaunchRequest
    launch_id: str
    supervisor: subprocess.Popen[bytes]
    began: float

    @property
    def ending_seconds(self) -> float:
        """Longest time in which a supervisor ends its launch."""
        return (
            self.request.grace_seconds
            + processes.STACKS_SECONDS
            + processes.SWEEP_SECONDS
            + _OVERDUE_SECONDS
        )


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


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what would make a process take itself for somebody's rank."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIX)
    }


def _start(request: LaunchRequest) -> _Running:
    launch_id = uuid.uuid4().hex
    order = Order(
        launch=launch_id,
        argv=list(request.argv),
        # Unbuffered, since the silence limit judges by what reaches the log.
        env={"PYTHONUNBUFFERED": "1", **request.env},
        records=str(request.records) if request.records else None,
        wall_seconds=request.wall_seconds,
        silence_seconds=request.silence_seconds,
        grace_seconds=request.grace_seconds,
    )
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
        _refuse_used(request)
        write(request.folder / ORDER, asdict(order))
        with (request.folder / LOG).open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "trn_validate.supervisor", str(request.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=child_environment(os.environ),
                # A terminal's Ctrl-C goes to its whole group; the supervisor waits to be asked.
                start_new_session=True,
            )
    except OSError as error:
        raise MeasurementError(
            f"the launch cannot be started ({error.strerror})", where=str(request.folder)
        ) from error
    return _Running(
        request=request, launch_id=launch_id, supervisor=supervisor, began=time.monotonic()
    )


def _refuse_used(request: LaunchRequest) -> None:
    """Records and logs of an earlier launch would pass for those of this one."""
    used = [request.folder / name for name in (ORDER, OUTPUT, FACTS)]
    if request.records is not None:
        for rank in range(request.ranks):
            used += [rank_file(request.records, rank), failure_file(request.records, rank)]
    for path in used:
        if path.exists():
            raise FolderError(
                "an earlier launch has written here",
                where=str(path),
                todo="Give every launch a folder of its own.",
            )


def _wait(one: _Running) -> Facts:
    remaining = one.began + one.request.wall_seconds + one.ending_seconds - time.monotonic()
    try:
        status = one.supervisor.wait(max(0.0, remaining))
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
            one.supervisor.wait(one.ending_seconds)
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
