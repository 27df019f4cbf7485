"""The process that stands between the pipeline and one launch.

It adopts what torchrun orphans, bounds the launch, and ends it when a limit is reached or the
pipeline dies, which shows as the end of its standard input. It imports the standard library
alone: it starts before the launch and has to work where nothing else does.

In the launch's folder: ``launch.json`` (the order), ``processes.json`` (who supervises),
``output.log``, ``supervisor.log`` (its own complaints), ``stacks/<pid>.txt`` (of processes that
registered faulthandler on SIGUSR1) and, last, ``supervisor.json`` (the facts).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from trn_validate import processes
from trn_validate.processes import LAUNCH, SUPERVISOR, Process

ORDER = "launch.json"
PROCESSES = "processes.json"
OUTPUT = "output.log"
STACKS = "stacks"
FACTS = "supervisor.json"
LOG = "supervisor.log"

_POLL = 0.05
_SETTLE_SECONDS = 0.5
"""Helpers of a rank, such as resource trackers, leave a moment after it."""
_SHARE = 20
"""Looking takes at most one part in so many: a Trn2 host runs thousands of processes."""
_PR_SET_CHILD_SUBREAPER = 36

Ended = Literal["exited", "wall", "silence", "orphaned", "interrupted", "lost"]
"""Lost: the supervisor itself died, and whoever waited for it says so."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the pipeline asks of a supervisor."""

    launch: str
    argv: list[str]
    env: dict[str, str]
    records: str | None
    wall_seconds: float
    silence_seconds: float
    grace_seconds: float
    linger_seconds: float = 0.0
    """Between the stacks and the end, so that other nodes of the launch take theirs too."""
    port: int | None = None
    """Of the rendezvous of several nodes; None takes one that is free."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How a launch ended, as its supervisor saw it; ranks are decimal keys."""

    ended: Ended
    exit_status: int | None = None
    """128 + number for a signal; None where the launch was ended."""
    seconds: float = 0.0
    rank_pids: dict[str, int] = field(default_factory=dict)
    rank_gone: dict[str, float] = field(default_factory=dict)
    """Seconds since the epoch at which a rank was first seen gone, before anything was ended."""
    leftovers: int = 0
    """Processes that had to be killed at the end."""
    alive: list[int] = field(default_factory=list)
    """Processes that even SIGKILL did not end."""


class Supervisor:
    """Starts one launch, watches it, ends it, and says how it went."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.folder = folder
        self.order = order
        self.child = 0
        self.status: int | None = None
        self.signalled = False
        self.ranks: dict[str, Process] = {}
        self.gone: dict[str, float] = {}
        self.files: dict[Path, tuple[int, int]] = {}
        self.next_look = 0.0
        self.heard = 0.0

    def interrupt(self, *_: object) -> None:
        """Signal handler: the launch is to end."""
        self.signalled = True

    def run(self) -> Facts:
        """Carry the order out; nothing of the launch is alive afterwards."""
        began = time.monotonic()
        ended: Ended = self._watch(began) if self._start() else "exited"
        seconds = time.monotonic() - began
        if ended in ("wall", "silence"):
            processes.take_stacks(self.folder / STACKS, self.living())
            time.sleep(self.order.linger_seconds)
        if ended == "exited":
            self._wait_while(lambda: bool(self.living()), _SETTLE_SECONDS)
        elif self.status is None:
            processes.send(self.child, signal.SIGTERM)
            self._wait_while(lambda: self.status is None, self.order.grace_seconds)
        leftovers, left = processes.sweep(self.living)
        return Facts(
            ended=ended,
            exit_status=self.status if ended == "exited" else None,
            seconds=seconds,
            rank_pids={rank: one.pid for rank, one in self.ranks.items()},
            rank_gone=self.gone,
            leftovers=leftovers,
            alive=left,
        )

    def living(self) -> list[int]:
        """Pids of the launch that are alive, after reaping those that are not."""
        self._reap()
        return [one.pid for one in processes.members(self.order.launch, above=os.getpid())]

    def _start(self) -> bool:
        me = processes.process(os.getpid())
        identity = f"{os.getpid()}:{me.start if me else ''}"
        write(self.folder / PROCESSES, {"launch": self.order.launch, "supervisor": identity})
        env = os.environ | self.order.env
        env |= {LAUNCH: self.order.launch, SUPERVISOR: identity}
        output = self.folder / OUTPUT
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self.child = os.posix_spawnp(
                self.order.argv[0],
                self.order.argv,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=[],
                # Python ignores these two, and an ignored signal stays so in what it starts.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError as error:
            output.write_text(f"cannot start {self.order.argv[0]}: {error.strerror}\n")
            self.status = 127 if isinstance(error, FileNotFoundError) else 126
            return False
        return True

    def _watch(self, began: float) -> Ended:
        self.heard = began
        while True:
            self._reap()
            self._mark_gone()
            if self.status is not None:
                return "exited"
            if self.signalled:
                return "interrupted"
            now = time.monotonic()
            if now - began > self.order.wall_seconds:
                return "wall"
            if now >= self.next_look:
                self.look()
                if time.monotonic() - self.heard > self.order.silence_seconds:
                    return "silence"
            if select.select([0], [], [], _POLL)[0] and not os.read(0, 4096):
                return "orphaned"

    def look(self) -> None:
        """Find ranks that are new and files that changed."""
        began = time.monotonic()
        found = processes.members(self.order.launch, above=os.getpid())
        rank_of = {one.pid: env.get("RANK") for one, env in found.items()}
        for one in found:
            rank = rank_of[one.pid]
            # Helpers inherit the variable from their rank, which stands above them.
            if rank is not None and rank_of.get(one.parent) != rank:
                self.ranks.setdefault(rank, one)
        files = self._stat_files()
        now = time.monotonic()
        if files != self.files:
            self.files, self.heard = files, now
        self.next_look = now + min(1.0, max(_POLL, _SHARE * (now - began)))

    def _stat_files(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for top in filter(None, (str(self.folder), self.order.records)):
            for folder, _, names in os.walk(top):
                for path in (Path(folder, name) for name in names):
                    try:
                        stat = path.stat()
                    except OSError:
                        continue
                    found[path] = (stat.st_size, stat.st_mtime_ns)
        return found

    def _mark_gone(self) -> None:
        for rank, one in self.ranks.items():
            if rank not in self.gone and not processes.is_alive(one):
                self.gone[rank] = time.time()

    def _wait_while(self, holds: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and holds():
            time.sleep(_POLL)
            self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self.status = code if code >= 0 else 128 - code


def write(path: Path, content: Mapping[str, object]) -> None:
    """Write JSON so that a reader finds all of it or no file."""
    scratch = path.with_suffix(".tmp")
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_order(folder: Path) -> Order:
    """The order in a launch's folder."""
    return Order(**json.loads((folder / ORDER).read_text("utf-8")))


def supervise(folder: Path, order: Order) -> int:
    """Carry out an order and leave the facts in its folder; gives the exit status."""
    supervisor = Supervisor(folder, order)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, supervisor.interrupt)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")
    try:
        write(folder / FACTS, asdict(supervisor.run()))
    except OSError as error:
        print(f"supervisor: {error}", file=sys.stderr)
        return error.errno or 1
    finally:
        processes.sweep(supervisor.living)
    return 0


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1]), read_order(Path(sys.argv[1]))))
