"""The folder of all runs: finding them, starting one, and tidying up after a kill."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from trn_validate.errors import FolderError, UsageError
from trn_validate.hashes import Hashes
from trn_validate.paths import (
    folder_errors,
    free_bytes,
    make_folder,
    move,
    show_bytes,
    write_atomic,
)
from trn_validate.run import PLAN, PRIVATE, BusyError, Run

_CHECKOUT = Path(__file__).resolve().parent.parent
_PROBE = ".writable"


def kind_of(target: str, path: str, nodes: int) -> str:
    """How the names of runs begin that are of one target, model path and number of nodes."""
    return f"{target}.{path}" + (f".{nodes}nodes" if nodes > 1 else "")


class Store:
    """The run folders under ``root``, usually ``reports``."""

    def __init__(self, root: Path, *, checkout: Path = _CHECKOUT) -> None:
        self.root = root.absolute()
        self.checkout = checkout
        self.private = self.root / PRIVATE
        self.outside = Hashes(Path("/"), self.private / "hashes.json")
        """Digests of files outside of any run, such as data and weights."""

    def runs(self) -> list[Run]:
        """Every run, the newest first.

        Raises:
            FolderError: the folder cannot be read, or is a file.
        """
        if not os.path.lexists(self.root):
            return []
        return sorted(self._named_in(self.root), key=lambda run: run.order, reverse=True)

    def _named_in(self, folder: Path) -> list[Run]:
        """A run for each folder in ``folder`` that is named like one."""
        with folder_errors(folder):
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
        found = []
        for name in names:
            try:
                found.append(Run(self.root, name, self.checkout))
            except UsageError:
                # Not a run: the private twin, the sample bundle, or what a person put there.
                continue
        return found

    def newest(self, target: str, path: str, nodes: int = 1) -> Run | None:
        """Newest run of a target and model path over so many nodes."""
        wanted = (target, path, nodes)
        mine = (run for run in self.runs() if (run.target, run.path, run.nodes) == wanted)
        return next(mine, None)

    def create(
        self,
        target: str,
        path: str,
        plan_text: str,
        *,
        nodes: int = 1,
        now: datetime | None = None,
    ) -> Run:
        """Start a run: a folder with its plan, there as a whole or not at all.

        Raises:
            FolderError: it could not be made.
        """
        run = self._reserve(kind_of(target, path, nodes), now or datetime.now(UTC))
        write_atomic(run.private / PLAN, plan_text.encode("utf-8"))
        ready = run.private / "ready"
        make_folder(ready)
        write_atomic(ready / PLAN, run.redactor().text(plan_text).encode("utf-8"))
        move(ready, run.folder)
        return run

    def _reserve(self, kind: str, now: datetime) -> Run:
        """Make the private twin of a run whose name sorts as the newest of all.

        Not only of its own target and path: status asks for the newest of any.
        """
        self._make_private()
        runs = self.runs()
        start = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        if runs and runs[0].start > start:
            # A clock that was set back must not hide the new run behind an older one.
            start = runs[0].start
        # A twin without a run folder is of a run that another process is about to start.
        others = (*runs, *self._named_in(self.private))
        for nth in count(1 + max((run.nth for run in others if run.start == start), default=0)):
            name = f"{kind}.{start}" + (f"-{nth}" if nth > 1 else "")
            run = Run(self.root, name, self.checkout)
            if os.path.lexists(run.folder):
                continue
            with folder_errors(run.private), suppress(FileExistsError):
                run.private.mkdir()
                break
        return run

    def check_writable(self, need_bytes: int = 0) -> None:
        """Make the folder if needed, write to it, and compare the free space with the need.

        Raises:
            FolderError: it is a file, is read-only, or has too little space.
        """
        self._make_private()
        for folder in (self.root, self.private):
            probe = folder / _PROBE
            write_atomic(probe, b"\n")
            with folder_errors(probe):
                probe.unlink(missing_ok=True)
        free = free_bytes(self.root)
        if free < need_bytes:
            raise FolderError(
                f"{show_bytes(need_bytes)} are needed and {show_bytes(free)} are free",
                where=str(self.root),
                todo="Free some space, or remove runs that are not needed any more.",
            )

    def publish_leftovers(self, held: Run | None = None) -> tuple[str, ...]:
        """Publish what killed runs left private, in every run that no process is at.

        ``held`` is the run whose lock the caller holds. Gives ``<run>/<stage>/<attempt>``.

        Raises:
            FolderError: a copy could not be written.
        """
        done: list[str] = []
        for run in self.runs():
            mine = held is not None and run.name == held.name
            with suppress(BusyError), nullcontext() if mine else run.lock():
                done += [f"{run.name}/{name}" for name in run.publish_leftovers()]
        return tuple(done)

    def _make_private(self) -> None:
        with folder_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with folder_errors(self.private):
            # Raw logs name people and machines.
            self.private.mkdir(mode=0o700, exist_ok=True)
