"""One try at a stage: its two folders, and what becomes of the files that a launch left."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trn_validate.errors import MeasurementError
from trn_validate.paths import below, move, write_atomic
from trn_validate.publish import SKIPPED, publish

if TYPE_CHECKING:
    from trn_validate.redact import Redactor

_PUBLISHED = ".published"


@dataclass(frozen=True)
class Attempt:
    """One try at a stage, with its two folders."""

    stage: str
    number: int
    folder: Path
    """In the run folder: what is hashed, named in the verdict and bundled."""
    private: Path
    """In the private twin: what a launch writes while it lives."""

    @property
    def relative(self) -> str:
        """Its folder relative to the run folder, as verdicts name it."""
        return f"{self.stage}/{self.folder.name}"

    @property
    def left_behind(self) -> bool:
        """Whether what it wrote is still private, since whoever was at it was killed."""
        return self.private.is_dir() and not (self.private / _PUBLISHED).exists()

    def publish(self, redactor: Redactor) -> tuple[str, ...]:
        """Copy its text files, redacted, from the private folder into the run folder.

        Gives the names of the copies, relative to the run folder. torchtitan's dumps are
        left out.

        Raises:
            FolderError: no space, or no right; no half file is left.
        """
        copies = publish(self.private, self.folder, redactor)
        write_atomic(self.private / _PUBLISHED, b"", sync=False)
        return tuple(f"{self.relative}/{copy}" for copy in copies)

    def adopt(self, source: Path, name: str) -> str:
        """Move a file or folder that is no text into its folder; give its relative name.

        What an earlier call has moved is found where it is.

        Raises:
            MeasurementError: there is no such file or folder.
            FolderError: it could not be moved, or the name is taken.
        """
        target = below(self.folder, name)
        if target is None:
            raise ValueError(f"{name} leads out of the attempt's folder")
        if os.path.lexists(source):
            move(source, target)
        elif not os.path.lexists(target):
            raise MeasurementError("the launch left no such file or folder", where=str(source))
        return f"{self.relative}/{name}"

    def drop_dumps(self) -> None:
        """Remove what is never published: what a verdict names of it was moved out before."""
        for name in SKIPPED:
            for dump in self.private.glob(f"*/{name}"):
                # What cannot be removed only takes space; the stage has its answer.
                shutil.rmtree(dump, ignore_errors=True)
