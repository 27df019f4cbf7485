"""Letting one process at a time work in a folder; the lock ends with the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trn_validate.errors import TrnValidateError
from trn_validate.paths import folder_errors, make_folder


@contextmanager
def lock(path: Path, taken: TrnValidateError) -> Iterator[None]:
    """Hold the lock file ``path``, or raise ``taken`` where another process holds it."""
    import fcntl

    make_folder(path.parent)
    with folder_errors(path):
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError:
            # Some network file systems have no locks; that is no reason not to run.
            pass
        yield
