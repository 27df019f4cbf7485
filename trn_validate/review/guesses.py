"""What is a guess: every sentence of our sources that is labelled so.

The label is ``Guess:``, and the sentence after it says what is assumed. The sources are the
registry, so no list can be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

_FOLDERS = ("trn_validate", "stages", "scripts", "configs")
_SUFFIXES = (".py", ".yaml")
_LABEL = re.compile(
    r"(?<!`)(?<!class )\bGuess:\s+(.+?)(?:\.(?=\s|\"|$)|\n\s*\n|\"\"\"|\Z)", re.DOTALL
)
_COMMENT = re.compile(r"^[ \t]*#[ \t]?", re.MULTILINE)


@dataclass(frozen=True)
class Guess:
    """One thing that is assumed, and where."""

    file: str
    """Relative to the checkout."""
    line: int
    what: str


def guesses(checkout: Path = CHECKOUT) -> tuple[Guess, ...]:
    """All of them, by file and line."""
    return tuple(guess for file in _sources(checkout) for guess in _read(checkout, file))


def _sources(checkout: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        files = (checkout / folder).rglob("*")
        yield from sorted(file for file in files if file.suffix in _SUFFIXES)


def _read(checkout: Path, file: Path) -> Iterator[Guess]:
    raw = file.read_text(encoding="utf-8")
    # As many lines as before, so that a sentence over several comment lines is one.
    text = _COMMENT.sub("", raw)
    for found in _LABEL.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        what = " ".join(found[1].split())
        yield Guess(str(file.relative_to(checkout)), line, what)
