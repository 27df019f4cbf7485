"""Digests of files, remembered with the size and time that the file had when it was read.

Most questions are answered from what is remembered; a stage that is about to use a file
reads it again, whatever is remembered.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trn_validate.errors import EvidenceError, FolderError, MeasurementError
from trn_validate.paths import below, file_digest, files_below, write_atomic
from trn_validate.verdict import Artifact


class _Known(NamedTuple):
    sha256: str
    bytes: int
    mtime_ns: int

    def read_from(self, status: os.stat_result) -> bool:
        """Whether the file has the size and time that it had when it was read."""
        return (self.bytes, self.mtime_ns) == (status.st_size, status.st_mtime_ns)


class Hashes:
    """Digests of the files under ``folder``, remembered in the file ``memory``."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self.folder = folder
        self.memory = memory
        self._known: dict[str, _Known] | None = None

    def artifact(self, relative: str) -> Artifact:
        """Read a file and name it with its digest.

        Raises:
            MeasurementError: no such file, or it changes while it is read.
        """
        return self._artifacts([relative])[0]

    def tree(self, relative: str) -> tuple[Artifact, ...]:
        """Read every file under a folder and name each with its digest.

        Raises:
            MeasurementError: no such folder, a folder without files, or a file that
                changes while it is read.
        """
        path = below(self.folder, relative)
        try:
            files = files_below(path) if path is not None and path.is_dir() else []
        except OSError as error:
            raise MeasurementError(f"cannot be read ({error.strerror})", where=relative) from error
        if not files:
            raise MeasurementError(
                "the folder is missing or holds no files", where=str(self.folder / relative)
            )
        return tuple(self._artifacts([str(file.relative_to(self.folder)) for file in files]))

    def unchanged(self, artifact: Artifact) -> bool:
        """Whether the file is what the artifact says, judged by size and time.

        It is read again only where these differ from what is remembered.
        """
        try:
            known = self._find([artifact.path], trust=True)[artifact.path]
        except MeasurementError:
            return False
        return (known.sha256, known.bytes) == (artifact.sha256, artifact.bytes)

    def recall(self, names: Iterable[str]) -> dict[str, str]:
        """Digest of each file, read only where size or time differ from what is remembered.

        Raises:
            MeasurementError: a file is missing, or changes while it is read.
        """
        return {name: known.sha256 for name, known in self._find(names, trust=True).items()}

    def verify(self, artifact: Artifact) -> Path:
        """Read the file, whatever is remembered, and give its path.

        Raises:
            EvidenceError: it is missing, or is not what the artifact says.
        """
        path = below(self.folder, artifact.path)
        todo = "Restore the file, or rerun the stage that made it."
        try:
            found = file_digest(path) if path is not None and path.is_file() else ""
        except OSError as error:
            raise EvidenceError(
                f"cannot be read ({error.strerror})", where=artifact.path, todo=todo
            ) from None
        if path is None or not found:
            raise EvidenceError("the file is missing", where=artifact.path, todo=todo)
        if found != artifact.sha256:
            raise EvidenceError(
                f"the file was changed: its sha256 is {found}, the verdict says {artifact.sha256}",
                where=artifact.path,
                todo=todo,
            )
        return path

    def _artifacts(self, names: Iterable[str]) -> list[Artifact]:
        return [
            Artifact(path=name, sha256=known.sha256, bytes=known.bytes)
            for name, known in self._find(names, trust=False).items()
        ]

    def _find(self, names: Iterable[str], *, trust: bool) -> dict[str, _Known]:
        found: dict[str, _Known] = {}
        for name in names:
            try:
                path, status = self._there(name)
                known = self._load().get(name) if trust else None
                if known is None or not known.read_from(status):
                    known = self._read(name, path)
            except OSError as error:
                raise MeasurementError(f"cannot be read ({error.strerror})", where=name) from error
            found[name] = known
        if any(self._load().get(name) != known for name, known in found.items()):
            self._remember(found)
        return found

    def _there(self, name: str) -> tuple[Path, os.stat_result]:
        path = below(self.folder, name)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if path is not None and stat.S_ISREG((status := path.stat()).st_mode):
                return path, status
        raise MeasurementError("the file is missing", where=str(self.folder / name))

    def _read(self, name: str, path: Path) -> _Known:
        before = path.stat()
        sha256 = file_digest(path)
        after = path.stat()
        if _stamp(before) != _stamp(after):
            raise MeasurementError("the file changes while it is read", where=name)
        return _Known(sha256, before.st_size, before.st_mtime_ns)

    def _load(self) -> dict[str, _Known]:
        if self._known is None:
            try:
                raw = json.loads(self.memory.read_bytes())
                self._known = {str(k): _Known(*v) for k, v in raw.items()}
            except (OSError, ValueError, TypeError, AttributeError, RecursionError):
                # Only a memory: without it the files are read again.
                self._known = {}
        return self._known

    def _remember(self, found: dict[str, _Known]) -> None:
        known = self._load()
        known |= found
        try:
            self.memory.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.memory, json.dumps(known).encode(), sync=False)
        except (OSError, FolderError):
            # A folder that is only read, as a bundle may be, can be judged all the same.
            return


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
