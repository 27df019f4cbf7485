"""Reading the small files by which a kernel shows itself; what cannot be read is told as absent."""

from __future__ import annotations

from pathlib import Path


def held(file: Path) -> str | None:
    """What a file holds, without space at its ends; None where it cannot be read."""
    try:
        return file.read_text("ascii", "replace").strip()
    except OSError:
        return None


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
