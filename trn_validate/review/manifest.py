"""manifest.sha256: the digest of every file of a run, in the form that sha256sum reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trn_validate.errors import EvidenceError
from trn_validate.paths import files_below

NAME = "manifest.sha256"
ATTESTATION = "attestation.json"
LEFT_OUT = "left-out.sha256"
"""In a bundle, the lines of the manifest whose files are too large to be in it."""

OUTSIDE = frozenset({NAME, ATTESTATION, LEFT_OUT})
"""Not listed: the list itself, and what is made from it."""

LARGE = (".safetensors", ".distcp", ".metadata")
"""Endings of the files that hold tensors, which a bundle may leave out."""

_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def listed_files(folder: Path) -> list[str]:
    """Names of the files that a manifest of the folder lists, in order."""
    names = (str(path.relative_to(folder)) for path in files_below(folder))
    return sorted(name for name in names if name not in OUTSIDE and not name.startswith(".ready"))


def text_of(digests: Mapping[str, str]) -> str:
    """The manifest of files with these digests."""
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))


def parse(text: str, *, where: str = NAME) -> dict[str, str]:
    """Digests by name.

    Raises:
        EvidenceError: a line is none of a manifest, or a name is given twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n")[:-1], 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            what = "a name is given twice" if match else "not a line of a manifest"
            raise EvidenceError(what, where=f"{where}:{number}")
        found[match[2]] = match[1]
    return found


def may_be_left_out(name: str) -> bool:
    """Whether a file holds tensors, so that a bundle need not have it."""
    return name.endswith(LARGE)
