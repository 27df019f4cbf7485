"""Whether a file that is about to leave this machine still names it, or holds a secret."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

from trn_validate.redact import Redactor
from trn_validate.review.manifest import may_be_left_out


def leaks(files: Mapping[str, bytes | Path], redactor: Redactor) -> list[str]:
    """Files that a redactor would still change, and at which line."""
    found = []
    for name, data in files.items():
        if may_be_left_out(name):
            continue  # tensors, in a format that has no place for a text of ours
        content = data if isinstance(data, bytes) else data.read_bytes()
        text = content.decode("utf-8", errors="backslashreplace")
        if (line := _first(text, name, redactor)) is not None:
            found.append(f"{name}:{line}")
    return found


def _first(text: str, name: str, redactor: Redactor) -> int | None:
    """The first line that gives something away, as it is or as HTML and XML show it."""
    redact = redactor.json_text if name.endswith((".json", ".jsonl")) else redactor.text
    # In a file of markup the stand-in itself is escaped, so only what a reader sees is judged.
    marked_up = name.endswith((".xml", ".html"))
    for number, line in enumerate(text.split("\n"), 1):
        shown = html.unescape(line) if marked_up else line
        if redact(shown) != shown:
            return number
    return None
