"""Packing a folder into an archive that is the same whenever it is packed, and opening one."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from trn_validate.errors import EvidenceError

MOST_BYTES = 8 * 2**30
"""Of what an archive unpacks to; a bundle of a CPU run without its tensors has a few MB."""

_TODO = "Get the bundle again from where it was made."


def pack(root: str, files: Mapping[str, bytes | Path]) -> bytes:
    """A tar.gz of files under ``root``: sorted, with no time and no owner, so always the same."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0, compresslevel=9) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            data = files[name]
            content = data if isinstance(data, bytes) else data.read_bytes()
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o644, 0
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@contextmanager
def opened(bundle: Path) -> Iterator[Path]:
    """The run folder of a bundle: itself, or what an archive holds, unpacked for so long.

    Raises:
        EvidenceError: there is no such file, or it is damaged, or a member leads out of it.
    """
    if bundle.is_dir():
        # Judging again links to records from elsewhere, which a relative path does not survive.
        yield bundle.resolve()
        return
    if not bundle.exists():
        raise EvidenceError("there is no such file or folder", where=str(bundle))
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="trn-validate-", dir=memory) as folder:
        _unpack(bundle, Path(folder))
        roots = sorted(Path(folder).iterdir())
        if len(roots) != 1 or not roots[0].is_dir():
            raise EvidenceError("not a bundle: it has to hold one folder", where=str(bundle))
        yield roots[0]


def _unpack(bundle: Path, folder: Path) -> None:
    total, seen = 0, set[str]()
    try:
        with tarfile.open(bundle, mode="r:gz") as archive:
            for member in archive:
                _refuse(member, seen, bundle)
                total += member.size
                if total > MOST_BYTES:
                    raise EvidenceError("it unpacks to too much", where=str(bundle), todo=_TODO)
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                if content is None:
                    raise EvidenceError("a member has no content", where=member.name, todo=_TODO)
                with target.open("xb") as file:
                    while chunk := content.read(1 << 20):
                        file.write(chunk)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        what = f"damaged, or no bundle ({error})"
        raise EvidenceError(what, where=str(bundle), todo=_TODO) from None


def _refuse(member: tarfile.TarInfo, seen: set[str], bundle: Path) -> None:
    """Refuse all but plain files in folders below the archive's own."""
    name = PurePosixPath(member.name)
    safe = (
        member.isreg()
        and not name.is_absolute()
        and ".." not in name.parts
        and "\0" not in member.name
        and "\\" not in member.name
        and str(name) == member.name
        and len(os.fsencode(member.name)) < 1024
    )
    if not safe:
        kind = "a link" if member.issym() or member.islnk() else "no plain file below it"
        raise EvidenceError(
            f"unsafe: its member {member.name!r} is {kind}", where=str(bundle), todo=_TODO
        )
    if member.name in seen:
        raise EvidenceError(f"it holds {member.name!r} twice", where=str(bundle), todo=_TODO)
    seen.add(member.name)
