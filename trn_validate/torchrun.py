"""torchrun's argument vector and its ranks' variables, on one machine and on several nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trn_validate.node import IS_HOST, POSITION, RENDEZVOUS, share_folder


def torchrun(
    ranks: int, folder: Path, module: str, *arguments: str, nodes: int = 1
) -> tuple[str, ...]:
    """The argument vector that runs a module in each rank, their output in ``folder``.

    On several nodes each runs it, with the words of :mod:`trn_validate.node` replaced.
    """
    joined: tuple[str, ...] = ("--rdzv-endpoint", "localhost:0")
    if nodes > 1:
        folder = share_folder(folder, POSITION, nodes)
        joined = (
            *("--nnodes", str(nodes), "--rdzv-id", "trn-validate"),
            *("--rdzv-endpoint", RENDEZVOUS, "--rdzv-conf", f"is_host={IS_HOST}"),
        )
    return (
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(ranks // nodes), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", *joined),
        *("--log-dir", str(folder / "ranks"), "--redirects", "3"),
        *("-m", module, *arguments),
    )


def rank_environment(device: str, ranks: int) -> dict[str, str]:
    """Variables of each of so many ranks on one node."""
    variables = {"OMP_NUM_THREADS": str(threads(ranks))}
    if device == "cpu":
        # A backend that loads by itself initialises its device, which this launch leaves alone.
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return variables


def threads(ranks: int) -> int:
    """OpenMP threads of a rank, at least 1.

    A one-process launch gets half of the cores, since two of them may run side by side.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, cores // max(2, ranks))
