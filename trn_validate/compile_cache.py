"""What the compiler's cache held before and after a compiled launch.

Seconds of compilation mean little without it: a warm cache answers in a tenth of the time, and an
entry that was made by another version, or that failed, is served in silence.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trn_validate.launch_neuron import CACHE
from trn_validate.launching import Trial, launch
from trn_validate.spec import RunSpec
from trn_validate.stage import Context, Findings

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Moves the cache of torch's inductor, by the documentation of torch.compile's caching; without
it that is ``torchinductor_<user>`` in the folder for temporary files."""

_NAMED = 5
"""Failed entries that are named one by one."""


@dataclass(frozen=True)
class CacheState:
    """What a cache holds at one time."""

    files: frozenset[str]
    """Every file, relative to the cache."""
    failed: tuple[str, ...] = ()
    """Entries that hold a log and nothing that was compiled."""

    @classmethod
    def of(cls, folder: Path) -> CacheState:
        """What is in a folder now; nothing where it is not there."""
        found: set[str] = set()
        failed: list[str] = []
        for at, _, names in os.walk(folder):
            place = Path(at).relative_to(folder)
            found.update(str(place / name) for name in names)
            if _has_failed(names):
                failed.append(str(place))
        return cls(frozenset(found), tuple(sorted(failed)))


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


def told(before: CacheState, after: CacheState) -> str:
    """The state of a cache over one launch, for people; a failed entry is named."""
    new = len(after.files - before.files)
    kind = "warm" if not new else "partly warm" if before.files else "cold"
    text = f"{kind}: {len(before.files)} files before, {len(after.files)} after, {new} of them new"
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
    folder = cache_folder(spec.device, context.run.private)
    before = CacheState.of(folder)
    (trial,) = launch(context, [spec])
    after = CacheState.of(folder)
    findings.facts = {**findings.facts, f"{spec.name}: compile cache": told(before, after)}
    findings.measures = {
        **findings.measures,
        f"{spec.name}.cache_files_before": float(len(before.files)),
        f"{spec.name}.cache_files_after": float(len(after.files)),
    }
    return trial
