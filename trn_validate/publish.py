"""Copying what a launch wrote out of the private folder, with names and secrets taken out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trn_validate.paths import files_below, folder_errors, writing

if TYPE_CHECKING:
    from trn_validate.redact import Redactor

SKIPPED = frozenset({"dump"})
"""Folders that are never copied: torchtitan's dump holds checkpoints and traces."""

_JSON = (".json", ".jsonl")
_TEXT = (*_JSON, ".log", ".txt")
_CHUNK = 1 << 20


def publish(source: Path, target: Path, redactor: Redactor) -> tuple[str, ...]:
    """Copy every text file under ``source``, redacted, to its place under ``target``.

    Gives the names of the copies, relative to ``target``. Done again it gives the same;
    a copy is whole or absent, whatever stops it.

    Raises:
        FolderError: a copy could not be written, for want of space or otherwise.
    """
    done = []
    with folder_errors(target):
        for file in files_below(source, skip=SKIPPED):
            if file.suffix not in _TEXT or file.name.startswith("."):
                continue
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with writing(copy) as temporary:
                _copy(file, temporary, redactor)
            done.append(str(copy.relative_to(target)))
    return tuple(done)


def _copy(source: Path, target: Path, redactor: Redactor) -> None:
    redact = redactor.json_text if source.suffix in _JSON else redactor.text
    # Whole lines at a time, since no name reaches over the end of a line. A log may hold bytes
    # that are no text; they are kept visible, and carriage returns are kept as they are.
    with (
        source.open(encoding="utf-8", errors="backslashreplace", newline="\n") as lines,
        target.open("w", encoding="utf-8", newline="") as copy,
    ):
        while chunk := lines.readlines(_CHUNK):
            copy.write(redact("".join(chunk)))
