"""The nodes that Slurm gave to the job in which this process runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from trn_validate.errors import UsageError
from trn_validate.node_name import VARIABLE

JOB, LIST, RESTARTS = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT"
_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A job and its nodes."""

    job: str
    nodes: tuple[str, ...]
    here: str | None
    """The one on which this process runs; None on a machine that is none of them."""

    def take(self, count: int) -> tuple[str, ...]:
        """So many of its nodes; the one on which this process runs is the first.

        Raises:
            UsageError: it has fewer.
        """
        if count > len(self.nodes):
            raise UsageError(
                f"{count} nodes are asked for, and job {self.job} has {len(self.nodes)}",
                where=", ".join(self.nodes),
                todo="Ask for more nodes, or set nodes to what there is.",
            )
        first = [name for name in self.nodes if name == self.here]
        return tuple([*first, *(name for name in self.nodes if name != self.here)][:count])


def job_of(environment: Mapping[str, str] = os.environ) -> str | None:
    """The job in which this process runs, for a verdict; it may have been put back and restarted.

    Slurm sets these variables in every batch script and step (sbatch(1)), with or without
    accounting.
    """
    job = environment.get(JOB)
    if not job:
        return None
    restarts = environment.get(RESTARTS, "0")
    return f"slurm {job}" if restarts == "0" else f"slurm {job}, restart {restarts}"


def find_allocation(environment: Mapping[str, str] = os.environ) -> Allocation:
    """The allocation in which this process runs.

    Raises:
        UsageError: it runs in none, or Slurm's commands do not answer.
    """
    job, listed = environment.get(JOB), environment.get(LIST)
    if not job or not listed:
        raise UsageError(
            "launcher slurm needs an allocation, and this process runs in none",
            todo="Run it by sbatch slurm/validate.sbatch, or inside salloc; see docs/slurm.md.",
        )
    names = _expand(listed)
    own = environment.get(VARIABLE)
    return Allocation(job=job, nodes=names, here=own if own in names else None)


def _expand(listed: str) -> tuple[str, ...]:
    argv = ["scontrol", "show", "hostnames", listed]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"scontrol does not tell which nodes {listed!r} are ({error})",
            todo="Load the environment in which srun and scontrol work.",
        ) from None
    return tuple(done.split())
