"""What a process does on the device, published while it does it; the standard library alone.

The counters below the host root grow by what the device has executed, and by nothing else. Who
uses the device is in a file for each process, which neuron-ls and neuron-monitor read.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torch_neuron_rehearsal.layout import counter, processes

SECONDS = 0.25
"""Between two publications: a process that is killed takes so much of its counts with it."""


class Activity:
    """Publishes for one process, from a thread of its own, and once more when the process ends."""

    def __init__(
        self, root: Path, executed: Callable[[], Sequence[int]], in_use: Callable[[], bool]
    ) -> None:
        self.root = root
        self.executed = executed
        """Operations that each core has executed for this process."""
        self.in_use = in_use
        self._published: dict[int, int] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Publish from now on, in children too."""
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(self.end)

    def end(self) -> None:
        """Publish what is left, and let go of the cores."""
        self.publish()
        for path in (self._file(), self._process()):
            path.unlink(missing_ok=True)

    def publish(self) -> None:
        """Add what was executed since the last time."""
        with self._lock:
            now = dict(enumerate(self.executed()))
            for core, count in now.items():
                if grown := count - self._published.get(core, 0):
                    add(counter(self.root, core, "success"), grown)
            if self.in_use():
                self._tell({core: count for core, count in now.items() if count})
            self._published = now

    def _begin(self) -> None:
        # A child has executed nothing, and what its parent has is published by the parent.
        self._published = dict(enumerate(self.executed()))
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="neuron-rehearsal", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(SECONDS):
            self.publish()

    def _tell(self, cores: dict[int, int]) -> None:
        whole = json.dumps({"pid": os.getpid(), "started": started(os.getpid()), "cores": cores})
        part = self._file().with_suffix(".part")
        part.write_text(whole, encoding="utf-8")
        part.replace(self._file())
        # The host's table of processes: it vanishes there when the process does.
        with contextlib.suppress(FileExistsError):
            self._process().symlink_to(f"/proc/{os.getpid()}")

    def _file(self) -> Path:
        return processes(self.root) / f"{os.getpid()}.json"

    def _process(self) -> Path:
        return self.root / "proc" / str(os.getpid())


def add(file: Path, count: int) -> None:
    """Add to a counter that other processes add to as well."""
    with file.open("r+b", buffering=0) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        total = int(held.read()) + count
        held.seek(0)
        # Of one width and in one piece, so that who reads without a lock reads a number.
        held.write(b"%019d\n" % total)


def started(pid: int) -> str:
    """When a process was started, in ticks since the boot; empty where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The program's name is in brackets and may hold anything; the 22nd field is the start.
    return text.rpartition(")")[2].split()[19]


def alive(root: Path) -> list[dict[str, object]]:
    """What every process that is alive has told; what dead ones left is removed."""
    told = []
    for file in sorted(processes(root).glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            one = json.loads(file.read_text(encoding="utf-8"))
            if one["started"] == started(one["pid"]):
                told.append(one)
                continue
            for left in (file, root / "proc" / str(one["pid"])):
                left.unlink(missing_ok=True)
    return told
