"""What the compiler's cache held before and after a compiled launch.

Seconds of compilation mean little without it: a warm cache answers in a tenth of the time, and an
entry that was made by another version, or that failed, is served in silence.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Set as AbstractSet
from pathlib import Path

from trn_validate.base import Record
from trn_validate.launch_neuron import CACHE
from trn_validate.launching import Trial, launch
from trn_validate.spec import RunSpec
from trn_validate.stage import Context, Findings

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Moves the cache of torch's inductor, by the documentation of torch.compile's caching; without
it that is ``torchinductor_<user>`` in the folder for temporary files."""

_NAMED = 5
"""Failed entries that are named one by one."""


class CacheState(Record):
    """What a cache holds after a launch."""

    files: int
    new: int
    """How many of the files were not there before."""
    failed: tuple[str, ...] = ()
    """Entries, relative to the cache, that hold a log and nothing that was compiled."""

    @classmethod
    def of(cls, folder: Path, before: AbstractSet[Path]) -> CacheState:
        """What is in a folder now, which held ``before``; nothing where it is not there."""
        places = [(Path(at), names) for at, _, names in os.walk(folder)]
        files = {at / name for at, names in places for name in names}
        failed = (str(at.relative_to(folder)) for at, names in places if _has_failed(names))
        return cls(files=len(files), new=len(files - before), failed=tuple(sorted(failed)))


def files_in(folder: Path) -> set[Path]:
    """Every file in a folder, however deep; none where it is not there."""
    return {Path(at) / name for at, _, names in os.walk(folder) for name in names}


def _has_failed(names: list[str]) -> bool:
    """Guess: a compilation that failed leaves its log in the cache with no NEFF beside it."""
    logs = any(name.endswith((".log", ".error")) for name in names)
    return logs and not any(name.endswith(".neff") for name in names)


def cache_folder(device: str, private: Path) -> Path:
    """Where compiled launches on a device keep what they compiled.

    Args:
        private: the run's private folder, which holds the caches of a neuron device.
    """
    if device == "neuron":
        return private / CACHE
    default = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    return Path(os.environ.get(INDUCTOR, default))


def told(before: int, after: CacheState) -> str:
    """The state of a cache over one launch, for people; a failed entry is named.

    Args:
        before: files that it held before the launch.
    """
    kind = "warm" if not after.new else "partly warm" if before else "cold"
    text = f"{kind}: {before} files before, {after.files} after, {after.new} of them new"
    if not after.failed:
        return text
    named = ", ".join(after.failed[:_NAMED])
    more = len(after.failed) - _NAMED
    return f"{text}; failed entries: {named}" + (f" and {more} more" if more > 0 else "")


def launch_compiled(context: Context, findings: Findings, spec: RunSpec) -> Trial:
    """Carry out one compiled launch, and record the cache's state beside its seconds.

    Raises:
        Unmeasured: the launch ended badly.
    """
    folder, there = cache_folder(spec.device, context.run.private), set[Path]()

    def look() -> int:
        there.update(files_in(folder))
        return len(there)

    name = f"{spec.name}: compile cache"
    before = context.observer.see(f"{name} before", int, look)
    (trial,) = launch(context, [spec])
    after = context.observer.see(f"{name} after", CacheState, lambda: CacheState.of(folder, there))
    findings.facts = {**findings.facts, name: told(before, after)}
    findings.measures = {
        **findings.measures,
        f"{spec.name}.cache_files_before": float(before),
        f"{spec.name}.cache_files_after": float(after.files),
    }
    return trial
