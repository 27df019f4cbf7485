"""One rank of a probe of collectives: ``torchrun ... -m trn_validate.workload.collectives --spec``.

Each operation is tried by itself and its phases are written down, so that one that hangs or
crashes is known by name. An operation cannot be taken back: a rank that is over its time limit
leaves its stack and ends, and whoever launched the probe launches it again for what is left.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import psutil
import torch
import torch.distributed as dist

from trn_validate.records import Mark, Phase, ProbeClosing, ProbeHeader, rank_file
from trn_validate.spec import Collective, CollectivesSpec, Groups
from trn_validate.workload.collective_ops import Members, attempt, compared
from trn_validate.workload.rank import answer_stack_requests, record_failure
from trn_validate.workload.writer import versions

_PATIENCE = 4
"""The process group's own time-out, in limits of an operation: the rank's has to come first."""
_WORDS = 300


def main() -> None:
    """Run one rank of the probe that ``--spec`` describes."""
    parser = argparse.ArgumentParser(prog="trn_validate.workload.collectives")
    parser.add_argument("--spec", type=Path, required=True)
    path: Path = parser.parse_args().spec
    spec = CollectivesSpec.model_validate_json(path.read_text(encoding="utf-8"))
    answer_stack_requests(Path(spec.stacks))
    try:
        _probe(spec)
    except BaseException as error:
        record_failure(Path(spec.records), error)
        raise


def _probe(spec: CollectivesSpec) -> None:
    for hook in spec.hooks:
        module, _, function = hook.partition(":")
        getattr(importlib.import_module(module), function)(spec)
    # The vendor's package demands that no device is touched before (its distributed/backend.py).
    dist.init_process_group(spec.backend, timeout=timedelta(seconds=_PATIENCE * spec.seconds))
    folder = Path(spec.records)
    folder.mkdir(parents=True, exist_ok=True)
    rank = dist.get_rank()
    with (
        rank_file(folder, rank).open("w", encoding="utf-8") as lines,
        (folder / f"rank-{rank}.trace.txt").open("w", encoding="utf-8") as trace,
    ):
        prober = Prober(spec, lines, trace)
        prober.write(_header(spec))
        for salt, operation in enumerate(spec.operations):
            prober.attempt(operation, salt)
        prober.write(ProbeClosing(operations=len(spec.operations)))
    dist.destroy_process_group()


def _header(spec: CollectivesSpec) -> ProbeHeader:
    return ProbeHeader(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        device=torch.ones(1, device=torch.device(spec.device)).device.type,
        backend=dist.get_backend(),
        versions=versions(),
        hooks=spec.hooks,
    )


class Prober:
    """Tries operations one by one, and writes how far it came."""

    def __init__(self, spec: CollectivesSpec, lines: IO[str], trace: IO[str]) -> None:
        self.device = torch.device(spec.device)
        self.seconds = spec.seconds
        self.lines = lines
        self.trace = trace
        self.made: dict[Groups | None, Members] = {}

    def write(self, line: ProbeHeader | Mark | ProbeClosing) -> None:
        """Append a line; what a process has handed to the system outlives its end."""
        self.lines.write(line.model_dump_json() + "\n")
        self.lines.flush()

    def attempt(self, operation: Collective, salt: int) -> None:
        """Try an operation within its time limit; this process ends where it takes longer."""
        name, began = str(operation), time.monotonic()
        self.write(Mark(operation=name, phase="begun"))
        # A thread of its own below Python, so it acts also where the interpreter is held.
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=self.trace)
        try:
            phase, what = self._carry_out(operation, name, salt)
        except Exception as error:  # a process group may refuse with anything
            words = " ".join(f"{type(error).__name__}: {error}".split())
            phase, what = "refused", words[:_WORDS]
        finally:
            faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - began
        self.write(Mark(operation=name, phase=phase, what=what, seconds=seconds))

    def _carry_out(self, operation: Collective, name: str, salt: int) -> tuple[Phase, str]:
        prepared = attempt(operation, self._members(operation.groups), self.device, salt)
        works = prepared.issue()
        self.write(Mark(operation=name, phase="issued"))
        for work in works:
            if work is not None:
                work.wait()
        differ = compared(*prepared.outcome())
        for tensor, before in prepared.untouched:
            differ = differ or _said("its input was changed: ", compared(tensor.cpu(), before))
        return ("wrong", differ[:_WORDS]) if differ else ("right", "")

    def _members(self, groups: Groups | None) -> Members:
        if groups not in self.made:
            self.made[groups] = _members(groups)
        return self.made[groups]


def _said(head: str, text: str) -> str:
    return head + text if text else ""


def _members(groups: Groups | None) -> Members:
    """The group of this rank; every rank makes every group, in the same order."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if groups is None:
        return Members(None, tuple(range(world)), rank)
    own: Members | None = None
    for ranks in enumerated(groups, world):
        group: Any = dist.new_group(list(ranks))
        if rank in ranks:
            own = Members(group, ranks, ranks.index(rank))
    if own is None:
        raise ValueError(f"rank {rank} of {world} is in none of the {groups}")
    return own


def enumerated(groups: Groups, world: int) -> list[tuple[int, ...]]:
    """The ranks of each group; every rank below ``world`` is in one if the sizes divide it."""
    block = groups.size * groups.stride
    return [
        tuple(first + offset + step * groups.stride for step in range(groups.size))
        for first in range(0, world, block)
        for offset in range(groups.stride)
    ]


if __name__ == "__main__":
    main()
