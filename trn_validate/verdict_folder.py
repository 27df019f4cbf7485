"""The verdicts of one run, in its folder or in a bundle of it."""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path

from trn_validate.errors import EvidenceError, UsageError
from trn_validate.paths import folder_errors, make_folder, text_digest, write_atomic
from trn_validate.verdict import Verdict

_STAGE = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")


def is_stage(name: str) -> bool:
    """Whether a name can be that of a stage, and so of a file and a folder."""
    return _STAGE.fullmatch(name) is not None


class VerdictFolder:
    """Reads and replaces the verdicts in ``folder`` that belong to the run ``name``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    def verdict_path(self, stage: str) -> Path:
        """Where the verdict of a stage stands."""
        if not is_stage(stage):
            raise UsageError("not the name of a stage", where=stage)
        return self.folder / f"{stage}.json"

    def stages_present(self) -> tuple[str, ...]:
        """Stages that have a verdict file, readable or not, by name."""
        with folder_errors(self.folder):
            stems = [path.stem for path in self.folder.iterdir() if path.suffix == ".json"]
        return tuple(sorted(stem for stem in stems if is_stage(stem)))

    def read(self, stage: str) -> Verdict | None:
        """Verdict of a stage; None where it has none.

        Raises:
            EvidenceError: it cannot be read, or is not this run's verdict of this stage.
        """
        found = self.read_with_digest(stage)
        return found[0] if found else None

    def read_with_digest(self, stage: str) -> tuple[Verdict, str] | None:
        """Verdict of a stage and the digest by which later ones name it, from one reading.

        Raises:
            EvidenceError: as :meth:`read`.
        """
        path = self.verdict_path(stage)
        where, todo = str(path), "Restore the file, or rerun the stage."
        try:
            text = path.read_bytes().decode("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise EvidenceError(f"cannot be read ({error})", where=where, todo=todo) from None
        verdict = Verdict.from_json(text, where=where)
        if (verdict.stage, verdict.run) != (stage, self.name):
            raise EvidenceError(
                f"this is the verdict of {verdict.stage} in the run {verdict.run}",
                where=where,
                todo=todo,
            )
        return verdict, text_digest(text)

    def _standing_attempt(self, stage: str) -> int | None:
        """Attempt of the verdict that stands; None where none does that can be read."""
        try:
            standing = self.read(stage)
        except EvidenceError:
            return None
        return standing.attempt if standing else None

    def _replace(self, stage: str, number: int, text: str) -> str:
        """Let ``text`` stand as the verdict of attempt ``number``; give its digest.

        What stood is first kept in its own attempt's folder, so that at every moment the
        standing verdict and all earlier ones are there.
        """
        path = self.verdict_path(stage)
        with folder_errors(path):
            before = path.read_bytes() if os.path.lexists(path) else None
        if before is not None:
            attempt = self._standing_attempt(stage)
            # Whose attempt an unreadable file was is unknown: its successor's folder keeps it.
            if attempt is None:
                _keep(self.folder / stage / str(number), "unreadable", before)
            else:
                _keep(self.folder / stage / str(attempt), "verdict", before)
        write_atomic(path, text.encode("utf-8"))
        return text_digest(text)


def _keep(folder: Path, name: str, data: bytes) -> None:
    make_folder(folder)
    for nth in count(1):
        kept = folder / (f"{name}.json" if nth == 1 else f"{name}-{nth}.json")
        with folder_errors(kept):
            if not os.path.lexists(kept):
                write_atomic(kept, data)
                return
            # Kept already, before something stopped the step that replaces it.
            if kept.read_bytes() == data:
                return
