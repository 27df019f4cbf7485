"""What every launcher does to start a launch: it gives the order and begins who supervises."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from trn_validate import processes
from trn_validate.errors import FolderError, MeasurementError
from trn_validate.launch import LaunchRequest
from trn_validate.records import failure_file, rank_file
from trn_validate.supervisor import FACTS, ORDER, OUTPUT, Order, write

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


def ending_seconds(request: LaunchRequest) -> float:
    """Longest time in which a supervisor ends its launch."""
    seconds = processes.STACKS_SECONDS + processes.SWEEP_SECONDS + _OVERDUE_SECONDS
    return request.grace_seconds + seconds


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what would make a process take itself for somebody's rank."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIX)
    }


def order_of(request: LaunchRequest, launch_id: str) -> Order:
    """What is asked of the supervisor of ``request`` on this machine."""
    return Order(
        launch=launch_id,
        argv=list(request.argv),
        # Unbuffered, since the silence limit judges by what reaches the log.
        env={"PYTHONUNBUFFERED": "1", **request.env},
        records=str(request.records) if request.records else None,
        wall_seconds=request.wall_seconds,
        silence_seconds=request.silence_seconds,
        grace_seconds=request.grace_seconds,
    )


@contextmanager
def starting(request: LaunchRequest) -> Iterator[None]:
    """Say of whatever the system refuses in the block that the launch cannot be started."""
    try:
        yield
    except OSError as error:
        raise MeasurementError(
            f"the launch cannot be started ({error.strerror})", where=str(request.folder)
        ) from error


def give_order(request: LaunchRequest, folder: Path, order: Order) -> None:
    """Write an order into the folder of its supervisor.

    Raises:
        FolderError: an earlier launch has used the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_used(request, folder)
    write(folder / ORDER, asdict(order))


def _refuse_used(request: LaunchRequest, folder: Path) -> None:
    """Records and logs of an earlier launch would pass for those of this one."""
    used = [folder / name for name in (ORDER, OUTPUT, FACTS)]
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


def begin(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start what supervises; its standard input is the line of life."""
    with log.open("wb") as file:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=child_environment(os.environ),
            # A terminal's Ctrl-C goes to its whole group; who supervises waits to be asked.
            start_new_session=True,
        )
