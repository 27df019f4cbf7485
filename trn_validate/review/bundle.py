"""Packing a run into one archive that a reviewer can verify: no secret, and not the tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trn_validate.errors import EvidenceError, UsageError
from trn_validate.paths import show_bytes, write_atomic
from trn_validate.review import manifest
from trn_validate.review.archive import pack
from trn_validate.review.documents import attested, digests_of, rendered
from trn_validate.review.leaks import leaks
from trn_validate.review.recorded import Recorded, read_recorded
from trn_validate.run import Run
from trn_validate.session import REPORTS, newest
from trn_validate.stage import StagesOf
from trn_validate.store import Store

LIMIT = "1MiB"
"""Largest file of tensors that a bundle takes unless asked for more."""

SUFFIXES = (".json", ".jsonl", ".log", ".txt", ".md", ".yaml", ".xml", ".html", ".sha256")
"""Files that a bundle takes, besides tensors; what has another ending is none of ours."""

_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmg]i?b)?", re.IGNORECASE)


def size_of(text: str) -> int:
    """Bytes of a size such as 20MiB.

    Raises:
        UsageError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no size", todo="Write it as 500kB, 20MiB or 1GiB.")
    return int(float(found[1]) * _UNITS[(found[2] or "").upper()])


def bundle(run: Run, output: Path, limit: int, stages_of: StagesOf) -> tuple[str, ...]:
    """Write the archive of a run; gives the names of the files that are left out.

    Raises:
        EvidenceError: the folder holds no run, or a file of it holds a secret.
        FolderError: it could not be written.
    """
    recorded = read_recorded(run.folder, stages_of)
    if recorded.problems:
        raise EvidenceError(recorded.problems[0], where=run.name)
    files, left_out = _files(run, recorded, limit, stages_of)
    found = leaks(files, run.redactor())
    if found:
        raise EvidenceError(
            f"it would give away what has to stay here ({'; '.join(found[:3])})",
            where=run.name,
            todo="Nothing was written. Rerun the stage, or remove the file from the run folder.",
        )
    write_atomic(output, pack(run.name, files))
    return left_out


def _files(
    run: Run, recorded: Recorded, limit: int, stages_of: StagesOf
) -> tuple[dict[str, bytes | Path], tuple[str, ...]]:
    """What goes in by name, and what is left out."""
    folder = run.folder
    digests = dict(digests_of(folder, run.private / "hashes.json"))
    made = rendered(folder, recorded.name, recorded.plan, recorded.standings, stages_of)
    files: dict[str, bytes | Path] = {}
    left_out = []
    for name in digests:
        path = folder / name
        if manifest.may_be_left_out(name):
            if path.stat().st_size > limit:
                left_out.append(name)
                continue
        elif not name.endswith(SUFFIXES):
            raise EvidenceError(
                "a file that no stage writes is in the run folder",
                where=f"{run.name}/{name}",
                todo="Move it away.",
            )
        files[name] = path
    files |= made
    digests |= {name: _digest(data) for name, data in made.items()}
    listing = manifest.text_of(digests)
    files[manifest.NAME] = listing.encode()
    files[manifest.ATTESTATION] = attested(folder, listing, recorded.standings)
    if left_out:
        files[manifest.LEFT_OUT] = _lines(digests, left_out)
    return files, tuple(left_out)


def _digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _lines(digests: Mapping[str, str], names: list[str]) -> bytes:
    return manifest.text_of({name: digests[name] for name in names}).encode()


def show_bundle(
    name: str | None,
    output: Path | None,
    limit: str,
    stages_of: StagesOf,
    *,
    reports: Path | None = None,
) -> int:
    """Pack a run, the newest by default, and say where the archive is.

    Raises:
        UsageError: there is no such run.
        EvidenceError: as :func:`bundle`.
    """
    most = size_of(limit)
    store = Store(reports or REPORTS)
    run = newest(store, None) if name is None else _named(store, name)
    target = output or store.root / f"{run.name}.tar.gz"
    left_out = bundle(run, target, most, stages_of)
    print(f"bundle    {target} ({show_bytes(target.stat().st_size)})")
    if left_out:
        print(f"left out  {len(left_out)} files of tensors, listed in {manifest.LEFT_OUT}")
    print(f"verify    python pipeline.py verify {target}")
    return 0


def _named(store: Store, name: str) -> Run:
    wanted = Path(name).name
    run = next((run for run in store.runs() if run.name == wanted), None)
    if run is None:
        raise UsageError(f"there is no run {name!r}", where=str(store.root))
    return run
