"""One rank's file of records: each line is on the disk before the next thing happens."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
import torch.distributed as dist

from trn_validate.node_name import node_name
from trn_validate.records import Closing, Header, State, Step, Written, rank_file
from trn_validate.spec import Degrees, RunSpec
from trn_validate.workload.clock import START

_PACKAGES = ("torch", "torchtitan", "torch-neuronx", "torchtitan-neuron", "neuronx-cc", "nki")


class RankWriter:
    """Appends records to ``rank-<r>.jsonl``."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.rank = dist.get_rank()
        self.steps = 0
        folder = Path(spec.records)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = rank_file(folder, self.rank).open("w", encoding="utf-8")

    def write(self, line: Written) -> None:
        """Append one line and wait until it is on the disk."""
        if isinstance(line, Step):
            self.steps += 1
        self.file.write(line.model_dump_json() + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def header(self, trainer: Any) -> None:
        """Write what this rank found when its trainer was built."""
        from torchtitan.tools import utils

        from trn_validate.workload.titan import REPLACED

        dims = trainer.parallel_dims
        batch = dims.get_mesh("batch") if dims.dp_enabled else None
        parameter = next(trainer.model_parts[0].parameters())
        self.write(
            Header(
                launch=os.environ.get("TRN_VALIDATE_LAUNCH", ""),
                rank=self.rank,
                local_rank=int(os.environ["LOCAL_RANK"]),
                world_size=dist.get_world_size(),
                dp_rank=batch.get_local_rank() if batch is not None else 0,
                pid=os.getpid(),
                started=psutil.Process().create_time(),
                python=platform.python_version(),
                versions=versions(),
                torchtitan_device=utils.device_type,
                parameter_device=parameter.device.type,
                comm_backend=dist.get_backend(),
                degrees=Degrees(
                    dp_replicate=dims.dp_replicate,
                    dp_shard=dims.dp_shard,
                    tp=dims.tp,
                    cp=dims.cp,
                    pp=dims.pp,
                    ep=dims.ep,
                ),
                local_batch_size=self.spec.local_batch_size,
                accumulation=trainer.gradient_accumulation_steps,
                parameters=_whole_parameters(trainer),
                vocab_size=trainer.model_config.vocab_size,
                threads=torch.get_num_threads(),
                node=node_name(),
                core=core(self.spec.device),
                replaced=REPLACED,
                hooks=self.spec.hooks,
            )
        )

    def state(self, step: int, at: Literal["start", "end"], digests: dict[str, str]) -> None:
        """Write the digests of the state at a point of the run."""
        self.write(State(step=step, at=at, digests=digests))

    def closing(self) -> None:
        """Write the last line: this rank did all its work."""
        now = time.monotonic()
        seconds = {
            "import": START["imported"] - START["process"],
            "build": START["built"] - START["imported"],
            "train": now - START["built"],
        }
        self.write(Closing(rank=self.rank, steps=self.steps, seconds=seconds))


def core(device: str) -> str:
    """The core of this rank: the device's by its local rank, or the CPUs that it may use."""
    if device == "neuron":
        return os.environ["LOCAL_RANK"]
    cpus = sorted(os.sched_getaffinity(0))
    whole = cpus == list(range(cpus[0], cpus[-1] + 1)) and len(cpus) > 1
    return f"{cpus[0]}-{cpus[-1]}" if whole else ",".join(map(str, cpus))


def versions() -> dict[str, str]:
    """Versions of the packages that compute, as far as they are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _whole_parameters(trainer: Any) -> int:
    """Elements of the parameters on this rank's stage, before any sharding."""
    return sum(p.numel() for part in trainer.model_parts for p in part.parameters())
