"""The processes of a launch, found in /proc by the id that each carries in its environment.

The supervisor imports this, so the standard library is all there is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

LAUNCH = "TRN_VALIDATE_LAUNCH"
"""Variable with the id of the launch."""
SUPERVISOR = "TRN_VALIDATE_SUPERVISOR"
"""Variable with <pid>:<start> of the launch's supervisor, so that a reused pid is not mistaken."""

SWEEP_SECONDS = 10.0
STACKS_SECONDS = 2.0
_PAUSE = 0.02
_PROC = Path("/proc")


class Process(NamedTuple):
    """What names a process for good, and where it hangs."""

    pid: int
    parent: int
    start: str
    """Clock ticks since boot."""


class Stray(NamedTuple):
    """A process whose supervisor is dead: left by a run that was killed."""

    pid: int
    launch_id: str
    argv: tuple[str, ...]


def process(pid: int) -> Process | None:
    """The process ``pid``; None where it is gone or only waits to be reaped."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name of the program comes before and may hold spaces and parentheses.
    fields = text[text.rfind(")") + 2 :].split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[1]), fields[19])


def is_alive(one: Process) -> bool:
    """Whether that very process lives; it may have got another parent since it was seen."""
    now = process(one.pid)
    return now is not None and now.start == one.start


def variables(pid: int) -> dict[str, str]:
    """Environment of a process of any launch; empty for strangers and where it is unreadable."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    # Nearly every process is a stranger, and all of them are looked at again and again.
    if LAUNCH.encode() not in raw:
        return {}
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0"))
    return {name: value for name, _, value in pairs}


def everyone() -> Iterator[Process]:
    """Every living process of this machine."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (found := process(int(entry.name))) is not None:
            yield found


def members(launch_id: str, above: int | None = None) -> dict[Process, dict[str, str]]:
    """Living processes of a launch, each with its variables.

    A member carries the id or, where ``above`` is given, descends from that process: a child
    may have dropped the variable, and a process may have left the tree.
    """
    every = list(everyone())
    found = {p: env for p in every if (env := variables(p.pid)).get(LAUNCH) == launch_id}
    below = {above}
    while more := [p for p in every if p.parent in below and p.pid not in below]:
        below.update(p.pid for p in more)
        found.update({p: {} for p in more if p not in found})
    return found


def alive(launch_id: str) -> list[int]:
    """Pids of the living processes that carry ``launch_id``."""
    return sorted(p.pid for p in members(launch_id))


def send(pid: int, signum: int) -> None:
    """Signal ``pid``; one that is gone, or is not ours to signal, is let be."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return


def sweep(living: Callable[[], Iterable[int]]) -> tuple[int, list[int]]:
    """SIGKILL whatever ``living`` finds, until it finds nothing or the time for it is over.

    Returns:
        How many processes this ended, and the pids that are alive nevertheless.
    """
    killed: set[int] = set()
    until = time.monotonic() + SWEEP_SECONDS
    while (left := sorted(living())) and time.monotonic() < until:
        for pid in left:
            send(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(_PAUSE)
    return len(killed - set(left)), left


def take_stacks(folder: Path, pids: Iterable[int]) -> None:
    """Have each of ``pids`` that can do so add its stacks to ``<pid>.txt`` in ``folder``."""
    before = {}
    for pid in pids:
        file = folder / f"{pid}.txt"
        # Without a handler the signal kills; the file says that there is one.
        if file.exists():
            before[file] = file.stat().st_size
            send(pid, signal.SIGUSR1)
    last: dict[Path, int] = {}
    until = time.monotonic() + STACKS_SECONDS
    while before and time.monotonic() < until:
        time.sleep(2 * _PAUSE)
        sizes = {file: file.stat().st_size for file in before}
        if sizes == last and all(sizes[file] > before[file] for file in before):
            return
        last = sizes


def end(launch_id: str) -> tuple[int, list[int]]:
    """SIGKILL all that carries ``launch_id``; answers as :func:`sweep` does."""
    return sweep(lambda: alive(launch_id))


def find_strays() -> list[Stray]:
    """Processes of this user that belong to a launch whose supervisor is dead."""
    found = []
    for one in everyone():
        env = variables(one.pid)
        if LAUNCH in env and _same_user_and_namespace(one.pid) and not _supervised(env):
            found.append(Stray(one.pid, env[LAUNCH], _argv(one.pid)))
    return found


def end_strays(strays: Iterable[Stray]) -> list[Stray]:
    """SIGKILL ``strays``; returns those that are alive nevertheless."""
    every = list(strays)

    def left() -> list[Stray]:
        # The pid may have gone to somebody else since it was found.
        return [
            s
            for s in every
            if process(s.pid) is not None and variables(s.pid).get(LAUNCH) == s.launch_id
        ]

    sweep(lambda: [s.pid for s in left()])
    return left()


def _supervised(env: dict[str, str]) -> bool:
    pid, _, start = env.get(SUPERVISOR, "").partition(":")
    if not pid.isdigit():
        return False
    supervisor = process(int(pid))
    return supervisor is not None and supervisor.start == start


def _same_user_and_namespace(pid: int) -> bool:
    # A container's processes are seen from its host too, but its pids mean nothing there: the
    # supervisor of a launch that lives in it would look dead.
    try:
        mine, theirs = Path("/proc/self/ns/pid").readlink(), Path(f"/proc/{pid}/ns/pid").readlink()
        return theirs == mine and Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except OSError:
        return False


def _argv(pid: int) -> tuple[str, ...]:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(item) for item in raw.removesuffix(b"\0").split(b"\0"))
