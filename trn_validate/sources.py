"""Digests of source code, found by path; nothing is imported."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path

from trn_validate.errors import UsageError

ABSENT = "absent"

_OWN = (".py", ".json", ".yaml", ".toml")


def code_version(checkout: Path) -> str:
    """Digest of what decides a verdict: pipeline.py, stages/ and trn_validate/ without review/.

    Tables that lie beside the code, in JSON, YAML or TOML, count as code.

    Raises:
        UsageError: this is no checkout, or a file of it cannot be read.
    """
    pipeline, stages, package = (checkout / p for p in ("pipeline.py", "stages", "trn_validate"))
    for needed in (pipeline, stages / "__init__.py", package / "__init__.py"):
        if not needed.is_file():
            raise UsageError(
                "is missing", where=str(needed), todo="Run from a complete checkout of the product."
            )
    review = package / "review"
    own = [path for path in _walk(package, _OWN) if review not in path.parents]
    return _digest(checkout, [pipeline, *_walk(stages, _OWN), *own])


def module_sources(import_path: str) -> str:
    """Digest of a module, of a package with all its modules, or ``absent``.

    ``module:name`` stands for the module. Only the top-level package is looked for by the
    import system, which finds it without running it; the rest is a matter of paths.

    Raises:
        UsageError: a file cannot be read.
    """
    parts = import_path.partition(":")[0].split(".")
    if not all(part.isidentifier() for part in parts):
        return ABSENT
    try:
        spec = find_spec(parts[0])
    except (ImportError, ValueError, AttributeError):
        # A broken finder, or a module that was made without a spec.
        return ABSENT
    if spec is None:
        return ABSENT
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if not places:
        return _file_sources(spec.origin)
    for part in parts[1:]:
        places = _inside(places, part)
        if places and places[0].is_file():
            # What is left of the path is a name in this module.
            return _file_sources(str(places[0]))
    files = {place: _walk(place, (".py",)) for place in places}
    if not any(files.values()):
        return ABSENT
    return _joined(_digest(place.parent, found) for place, found in files.items())


def folder_sources(folder: Path) -> str:
    """Digest of every Python file under a folder, or ``absent``.

    Raises:
        UsageError: a file cannot be read.
    """
    files = _walk(folder, (".py",))
    return _digest(folder, files) if files else ABSENT


def _inside(places: list[Path], part: str) -> list[Path]:
    """Where ``part`` lies, by the rules of import: package, module, then namespace."""
    for place in places:
        candidates = [place / part / "__init__.py", *(place / (part + s) for s in all_suffixes())]
        for candidate in candidates:
            if candidate.is_file():
                return [candidate.parent if candidate.name == "__init__.py" else candidate]
    return [place / part for place in places if (place / part).is_dir()]


def _file_sources(origin: str | None) -> str:
    path = Path(origin or "")
    return _digest(path.parent, [path]) if path.is_file() else ABSENT


def _walk(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files with such suffixes; hidden ones, caches and virtual environments are left out."""
    found: list[Path] = []
    for top, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name[0] != "." and name != "__pycache__"]
        found += [Path(top, n) for n in names if n.endswith(suffixes) and n[0] != "."]
    return found


def _digest(base: Path, files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for name, path in sorted((os.path.relpath(path, base), path) for path in map(str, files)):
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # half the time of Path
                data = file.read()
        except OSError as error:
            raise UsageError(f"cannot be read ({error.strerror})", where=path) from None
        # The lengths keep two files from looking like one.
        found.update(f"{len(name)} {name} {len(data)} ".encode())
        found.update(data)
    return found.hexdigest()


def _joined(digests: Iterable[str]) -> str:
    several = list(digests)
    return several[0] if len(several) == 1 else _text_digest(" ".join(several))


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
