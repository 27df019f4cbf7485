"""One stage of a finished run again, in a copy of that run: how long it takes, and how much memory.

``make bench`` uses it. The run itself stays as it is, since a stage that is run again makes those
after it stale.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from trn_validate.errors import UsageError
from trn_validate.run import Run
from trn_validate.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Again:
    """What it took to run one stage alone."""

    stage: str
    first: float
    """Seconds of the stage in the full run."""
    seconds: float
    """Wall seconds of the whole command, its start and its report among them."""
    peak_bytes: int
    """Of the pipeline's own process, without its launches."""

    @property
    def ratio(self) -> float:
        """The command's time over that of the stage in the full run."""
        return self.seconds / self.first


def run_again(run: Run, verdict: Verdict) -> Again:
    """Run the stage of this verdict in a copy of its run.

    Raises:
        UsageError: it does not pass there.
    """
    with _copied(run) as reports:
        began = time.monotonic()
        status, peak = _watched(_command(verdict, reports))
        seconds = time.monotonic() - began
    _require(status, run, verdict)
    return Again(verdict.stage, verdict.seconds, seconds, peak)


def timed_pairs(run: Run, verdict: Verdict, pairs: int) -> Verdict:
    """Run the stage that trains with kernels in a copy of its run, so many interleaved pairs.

    Raises:
        UsageError: it does not pass there.
    """
    with _copied(run) as reports:
        status, _ = _watched([*_command(verdict, reports), "--set", f"kernel_pairs={pairs}"])
        found = Run(Path(reports), run.name, run.checkout).read(verdict.stage)
    _require(status, run, verdict)
    if found is None:
        raise UsageError(f"{verdict.stage} left no verdict", where=str(run.folder))
    return found


@contextmanager
def _copied(run: Run) -> Iterator[str]:
    """A reports folder with a copy of the run, until the context ends."""
    with tempfile.TemporaryDirectory(prefix="trn-validate-bench-") as reports:
        shutil.copytree(run.folder, Path(reports) / run.name, copy_function=_link)
        yield reports


def _require(status: int, run: Run, verdict: Verdict) -> None:
    if status != 0:
        raise UsageError(
            f"{verdict.stage} ended with status {status} when it was run again",
            where=str(run.folder),
            todo=f"See why: {verdict.rerun}",
        )


def _link(source: str, destination: str) -> None:
    # Tensors are only read, and may be large; a link to another file system is refused.
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)


def _command(verdict: Verdict, reports: str) -> list[str]:
    """The command that the verdict names, with this Python and another reports folder."""
    _, *words = shlex.split(verdict.rerun)
    if "--reports" in words:
        place = words.index("--reports")
        del words[place : place + 2]
    return [sys.executable, *words, "--reports", reports]


def _watched(argv: list[str]) -> tuple[int, int]:
    """Exit status, and the largest memory that the process itself held, in bytes."""
    peak = 0
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        own = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, own.memory_info().rss)
            except psutil.Error:
                break
            time.sleep(_LOOK_SECONDS)
    return process.returncode, peak
