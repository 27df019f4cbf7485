"""The folder through which a long-lived group of ranks is given its work.

::

    job-<n>            path of the n-th run spec
    done-<n>-<rank>    that rank has ended it; ``ok`` or ``raised``
    closed             there is no more
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.01
_SIGN_SECONDS = 5.0
"""How often an idle rank gives a sign of life, so that the supervisor's silence limit is that of
a job."""


@dataclass(frozen=True)
class Queue:
    """Work of one group, by number."""

    folder: Path

    def put(self, number: int, spec: Path) -> None:
        """Hand out the ``number``-th spec."""
        self._write(f"job-{number}", str(spec))

    def close(self) -> None:
        """Let the ranks end once they have nothing left."""
        self._write("closed", "")

    def take(self, number: int) -> Path | None:
        """Wait for the ``number``-th spec; None once there is none and the queue is closed."""
        job = self.folder / f"job-{number}"
        said = time.monotonic()
        while not job.exists():
            if (self.folder / "closed").exists():
                return None
            if time.monotonic() - said > _SIGN_SECONDS:
                said = time.monotonic()
                print("waiting", flush=True)
            time.sleep(POLL_SECONDS)
        return Path(job.read_text(encoding="utf-8"))

    def done(self, number: int, rank: int, *, ok: bool) -> None:
        """Say that a rank has ended the ``number``-th spec."""
        self._write(f"done-{number}-{rank}", "ok" if ok else "raised")

    def finished(self, number: int) -> int:
        """How many ranks have ended the ``number``-th spec."""
        return len(list(self.folder.glob(f"done-{number}-*")))

    def raised(self, number: int) -> bool:
        """Whether any rank raised."""
        files = self.folder.glob(f"done-{number}-*")
        return any(path.read_text(encoding="utf-8") == "raised" for path in files)

    def _write(self, name: str, text: str) -> None:
        # Written beside and renamed, so that nobody reads half of it.
        half = self.folder / f".{name}"
        half.write_text(text, encoding="utf-8")
        half.rename(self.folder / name)
