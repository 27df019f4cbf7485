"""One run folder: its verdicts, the folders of its attempts, and the digests of its files.

::

    reports/<run>/plan.yaml                       redacted; the plan as given is in the twin
    reports/<run>/<stage>.json                    the verdict that stands
    reports/<run>/<stage>/<attempt>/              redacted records and logs, captures, checkpoints
    reports/<run>/<stage>/<attempt>/verdict.json  the verdict of that attempt, once replaced
    reports/<run>/kernels.nki/try-<n>/            one kernel tried by itself: no attempt
    reports/.private/<run>/                       the twin: never bundled
        plan.yaml  redaction.json  hashes.json  lock
        <stage>/<attempt>/                        what the launch wrote, as it wrote it
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from trn_validate.attempt import Attempt
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.hashes import Hashes
from trn_validate.lock import lock
from trn_validate.paths import folder_errors, make_folder, remove_halves, write_atomic
from trn_validate.verdict import Artifact, Verdict
from trn_validate.verdict_folder import VerdictFolder, is_stage

if TYPE_CHECKING:
    from trn_validate.redact import Names, Redactor

__all__ = ["PLAN", "PRIVATE", "Attempt", "BusyError", "Run"]

PRIVATE = ".private"
PLAN = "plan.yaml"

_NAME = re.compile(
    r"(?P<target>.+)\.(?P<path>(?!\d+nodes\.)[^.]+)(?:\.(?P<nodes>\d+)nodes)?"
    r"\.(?P<start>\d{8}T\d{6}Z)(?:-(?P<nth>\d+))?"
)
_NUMBER = re.compile(r"[0-9]+")


class BusyError(UsageError):
    """Another process is at work in the run."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "another process is at work in this run",
            where=name,
            todo="Wait until it has ended, or start a run of its own with --new.",
        )


class Run(VerdictFolder):
    """A run folder and its private twin."""

    def __init__(self, root: Path, name: str, checkout: Path) -> None:
        super().__init__(root / name, name)
        found = _NAME.fullmatch(name)
        if found is None:
            raise UsageError("not the name of a run folder", where=name)
        self.target, self.path, self.start = found["target"], found["path"], found["start"]
        self.nodes = int(found["nodes"] or 1)
        self.nth = int(found["nth"] or 1)
        """Which of the runs that started in the same second."""
        self.private = root / PRIVATE / name
        self.checkout = checkout
        self._hashes = Hashes(self.folder, self.private / "hashes.json")
        self._redactor: Redactor | None = None

    @property
    def order(self) -> tuple[str, int, str]:
        """Sorts runs by age, the oldest first."""
        return self.start, self.nth, self.name

    def plan_text(self) -> str:
        """Text of the plan, as given where the private twin is still there.

        Raises:
            EvidenceError: it is missing or cannot be read.
        """
        for path in (self.private / PLAN, self.folder / PLAN):
            try:
                return path.read_bytes().decode("utf-8")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise EvidenceError(f"cannot be read ({error})", where=str(path)) from None
        raise EvidenceError("the run has no plan", where=self.name, todo="Start one with --new.")

    def write(self, verdict: Verdict, attempt: Attempt) -> str:
        """Redact a verdict and let it stand, durably; give the digest of its file.

        The verdict that stood is kept in the folder of its own attempt.

        Raises:
            FolderError: it could not be written; what stood still stands.
        """
        mine = (self.name, attempt.stage, attempt.number)
        if (verdict.run, verdict.stage, verdict.attempt) != mine:
            raise ValueError(f"not a verdict of {' '.join(map(str, mine))}")
        from trn_validate import redact

        text = redact.redact_verdict(verdict, self.redactor()).to_json()
        return self._replace(attempt.stage, attempt.number, text)

    def new_attempt(self, stage: str) -> Attempt:
        """Make the folders of the next attempt; no number is ever used twice.

        Raises:
            FolderError: they could not be made.
        """
        used = [attempt.number for attempt in self.attempts(stage)]
        number = max(0, self._standing_attempt(stage) or 0, *used) + 1
        attempt = self._attempt(stage, number)
        make_folder(attempt.private)
        make_folder(attempt.folder)
        return attempt

    def new_try(self, stage: str) -> Attempt:
        """Make the folders ``try-<n>`` of something that will be no attempt at a verdict.

        Raises:
            FolderError: they could not be made.
        """
        number = 1
        while (self.private / stage / f"try-{number}").exists():
            number += 1
        name = f"{stage}/try-{number}"
        attempt = Attempt(stage, number, self.folder / name, self.private / name)
        make_folder(attempt.private)
        make_folder(attempt.folder)
        return attempt

    def attempts(self, stage: str) -> tuple[Attempt, ...]:
        """Every attempt at a stage that has a folder, in order."""
        found: set[int] = set()
        for folder in (self.folder / stage, self.private / stage):
            if folder.is_dir():
                with folder_errors(folder):
                    names = [entry.name for entry in folder.iterdir()]
                found |= {int(name) for name in names if _NUMBER.fullmatch(name)}
        return tuple(self._attempt(stage, number) for number in sorted(found))

    def _attempt(self, stage: str, number: int) -> Attempt:
        inner = f"{stage}/{number}"
        return Attempt(stage, number, self.folder / inner, self.private / inner)

    def publish(self, attempt: Attempt) -> tuple[str, ...]:
        """See :meth:`trn_validate.attempt.Attempt.publish`."""
        return attempt.publish(self.redactor())

    def publish_leftovers(self) -> tuple[str, ...]:
        """Publish every attempt that a killed run left private; give their names.

        To be called by the holder of the lock: what another process is at is no leftover.

        Raises:
            FolderError: as :meth:`publish`.
        """
        done: list[str] = []
        if not self.private.is_dir():
            return ()
        with folder_errors(self.private):
            stages = sorted(path.name for path in self.private.iterdir() if is_stage(path.name))
        for attempt in (attempt for stage in stages for attempt in self.attempts(stage)):
            if attempt.left_behind:
                self.publish(attempt)
                attempt.drop_dumps()
                done.append(attempt.relative)
        remove_halves(self.folder)
        return tuple(done)

    def artifact(self, relative: str) -> Artifact:
        """See :meth:`trn_validate.hashes.Hashes.artifact`."""
        return self._hashes.artifact(relative)

    def tree(self, relative: str) -> tuple[Artifact, ...]:
        """See :meth:`trn_validate.hashes.Hashes.tree`."""
        return self._hashes.tree(relative)

    def unchanged(self, artifact: Artifact) -> bool:
        """See :meth:`trn_validate.hashes.Hashes.unchanged`."""
        return self._hashes.unchanged(artifact)

    def verify(self, artifact: Artifact) -> Path:
        """See :meth:`trn_validate.hashes.Hashes.verify`."""
        return self._hashes.verify(artifact)

    def redactor(self, hosts: Iterable[Iterable[str]] = ()) -> Redactor:
        """Redactor of this run; ``hosts`` adds the names of further machines for good."""
        # Its patterns take time to build, and status, which reads alone, has 0.3 s.
        from trn_validate import redact

        if self._redactor is None or hosts:
            path = self.private / "redaction.json"
            known = _names(path)
            folders = {
                redact.RUN: [self.folder, self.private],
                redact.REPO: [self.checkout],
                redact.HOME: _home(),
            }
            names = redact.extend(known, folders, [redact.own_names(known), *hosts])
            if names != known:
                make_folder(self.private)
                write_atomic(path, json.dumps(names, indent=2).encode())
            self._redactor = redact.Redactor(names)
        return self._redactor

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run while the context lasts, so that no second process writes to it.

        Entering raises:
            BusyError: another process holds it.
        """
        return lock(self.private / "lock", BusyError(self.name))


def _home() -> list[Path]:
    try:
        return [Path.home()]
    except RuntimeError:
        # A user without an entry has no home that could show.
        return []


def _names(path: Path) -> Names:
    try:
        raw = json.loads(path.read_bytes())
        return {str(stand_in): tuple(map(str, texts)) for stand_in, texts in raw.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        # Without the map this machine counts as the first one seen.
        return {}
