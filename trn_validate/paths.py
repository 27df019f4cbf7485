"""Writing files that are whole or absent, reading their digests, and saying why not."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from trn_validate.errors import FolderError

_CHUNK = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)

_TEMPORARY = re.compile(r"\..+\.[0-9]+\.tmp")


@contextmanager
def folder_errors(path: Path) -> Iterator[None]:
    """Turn any failure of the file system at ``path`` into an answer.

    Raises:
        FolderError: with the place, the numbers and the remedy.
    """
    try:
        yield
    except OSError as error:
        raise _explain(error, path) from error


def _explain(error: OSError, path: Path) -> FolderError:
    where = str(path)
    if error.errno in _NO_SPACE:
        return FolderError(
            f"no space is left on the file system ({show_bytes(free_bytes(path))} free)",
            where=where,
            todo="Free some space, or a quota, and run the same command again.",
        )
    if error.errno in _NO_RIGHT:
        return FolderError(
            f"cannot be written ({error.strerror})",
            where=where,
            todo="Make the folder writable for this user, or choose another one.",
        )
    if error.errno in _NO_FOLDER:
        return FolderError(
            f"a file is where a folder has to be ({error.strerror})",
            where=str(error.filename or path),
            todo="Move that file away, or choose another folder.",
        )
    return FolderError(
        f"the file system refused ({error.strerror or error})",
        where=where,
        todo="Check the file system and run the same command again.",
    )


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write where ``path`` is, or would be."""
    import shutil

    for folder in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return 0


def show_bytes(count: int) -> str:
    """Show a number of bytes as a person reads it."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def write_atomic(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write ``path`` so that it holds all of ``data`` or what it held before.

    With ``sync`` it also survives a loss of power.

    Raises:
        FolderError: it could not be written; nothing of it is left.
    """
    with writing(path, sync=sync) as temporary:
        temporary.write_bytes(data)


@contextmanager
def writing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Give a temporary file beside ``path`` that takes its name once it is whole.

    Raises:
        FolderError: it could not be written; nothing of it is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with folder_errors(path):
        try:
            yield temporary
            if sync:
                _sync(temporary)
            os.replace(temporary, path)  # noqa: PTH105  # tests break this very step
            if sync:
                _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def remove_halves(folder: Path) -> None:
    """Remove what a kill left of files that were being written under ``folder``.

    Raises:
        FolderError: the folder cannot be read or written.
    """
    with folder_errors(folder):
        for path in files_below(folder):
            if _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, durably.

    Raises:
        FolderError: it could not be made.
    """
    with folder_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        _sync(path.parent)


def move(source: Path, target: Path) -> None:
    """Move a file or folder inside one file system; ``target`` must not exist.

    Raises:
        FolderError: it exists, or is on another file system.
    """
    if os.path.lexists(target):
        raise FolderError("is there already, and nothing is overwritten", where=str(target))
    with folder_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no fsync of a folder.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """sha256 of a file's contents, read in pieces."""
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            found.update(piece)
    return found.hexdigest()


def text_digest(text: str) -> str:
    """sha256 of a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def below(folder: Path, relative: str) -> Path | None:
    """Path of ``relative`` inside ``folder``; None where it would lead out of it."""
    pure = PurePosixPath(relative)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in relative:
        return None
    path = folder / pure
    # Only a link can lead out, and to follow every part of thousands of paths takes long.
    if not any(map(os.path.islink, (path, *path.parents[: len(pure.parts) - 1]))):
        return path
    return path if path.resolve().is_relative_to(folder.resolve()) else None


def files_below(
    folder: Path, *, skip: frozenset[str] = frozenset(), links: bool = False
) -> list[Path]:
    """Regular files under ``folder`` in a fixed order; with ``links``, links to files too.

    Folders whose name is in ``skip`` are left out, at any depth.
    """
    found: list[Path] = []
    for top, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if name not in skip]
        found += [Path(top, name) for name in names]
    return sorted(path for path in found if path.is_file() and (links or not path.is_symlink()))


def _refuse(error: OSError) -> None:
    # A folder that cannot be read must not look like one without files.
    raise error
