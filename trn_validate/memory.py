"""Memory of the host that can still be had."""

from __future__ import annotations

from pathlib import Path


def available_gib(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Memory that can be had without swapping, bounded by the control group, in GiB."""
    import psutil

    available = float(psutil.virtual_memory().available)
    try:
        limit, used = (
            float((group / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
        # Files that were read count as used until somebody needs the memory.
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        cached = sum(float(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        available = min(available, limit - used + cached)
    except (OSError, ValueError):
        # No control group, or no limit in it ("max").
        pass
    return available / 2**30
