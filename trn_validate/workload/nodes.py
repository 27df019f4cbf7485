"""One rank a node: how fast is the node, how far off its clock, and how fast each link?

``torchrun ... -m trn_validate.workload.nodes --records FOLDER --device D --backend B``
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trn_validate.node_name import node_name
from trn_validate.node_records import Link, NodeProbe, node_file
from trn_validate.workload.rank import record_failure
from trn_validate.workload.writer import versions

_SIDE, _PRODUCTS, _REPEATS = 512, 40, 5
"""Local work of a tenth of a second on a CPU; the best of five, since others may disturb one."""

_PINGS = 20
_LARGE, _TRIPS = 2**22, 4
"""Bytes of a large message, and how many go there and back: enough to fill any link's window."""


def main() -> None:
    """Measure, and leave what was measured."""
    parser = argparse.ArgumentParser(prog="trn_validate.workload.nodes")
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--backend", required=True)
    asked = parser.parse_args()
    try:
        _measure(asked.records, asked.device, asked.backend)
    except BaseException as error:
        record_failure(asked.records, error)
        raise


def _measure(folder: Path, device: str, backend: str) -> None:
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    # The clock is the host's, so it is asked over the host's network whatever the device is.
    hosts: Any = dist.new_group(backend="gloo")
    work = _work_seconds(device)
    offset, error = _clock(rank, world, hosts)
    links = tuple(_links(rank, world, device))
    probe = NodeProbe(
        rank=rank,
        node=node_name(),
        pid=os.getpid(),
        device=torch.zeros(1, device=device).device.type,
        backend=dist.get_backend(),
        versions=versions(),
        work_seconds=work,
        clock_seconds=offset,
        clock_error_seconds=error,
        links=links,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with node_file(folder, rank).open("w", encoding="utf-8") as file:
        file.write(probe.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    dist.barrier()
    dist.destroy_process_group()


def _work_seconds(device: str) -> float:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.rand(_SIDE, _SIDE, generator=generator).to(device)
    best = float("inf")
    # The first may compile, and is the longest then.
    for _ in range(_REPEATS + 1):
        begun = time.perf_counter()
        product = matrix
        for _ in range(_PRODUCTS):
            product = matrix @ product
            product = product / product.max()
        # Reading a number waits for the device.
        float(product[0, 0])
        best = min(best, time.perf_counter() - begun)
    return best


def _clock(rank: int, world: int, group: dist.ProcessGroup) -> tuple[float, float]:
    """How far this clock is ahead of rank 0's, and the error of that, in seconds."""
    offset, error = torch.zeros(world, dtype=torch.float64), torch.zeros(world, dtype=torch.float64)
    for other in range(1, world):
        if rank == 0:
            offset[other], error[other] = _ask_clock(other, group)
        elif rank == other:
            _tell_clock(group)
    for figures in (offset, error):
        dist.broadcast(figures, 0, group=group)
    return float(offset[rank]), float(error[rank])


def _ask_clock(other: int, group: dist.ProcessGroup) -> tuple[float, float]:
    told, best = torch.zeros(1, dtype=torch.float64), (0.0, float("inf"))
    for _ in range(_PINGS):
        asked, begun = time.time(), time.perf_counter()
        dist.send(told, other, group=group)
        dist.recv(told, other, group=group)
        half = (time.perf_counter() - begun) / 2
        # The shortest trip says most.
        if half < best[1]:
            best = (float(told) - asked - half, half)
    return best


def _tell_clock(group: dist.ProcessGroup) -> None:
    told = torch.zeros(1, dtype=torch.float64)
    for _ in range(_PINGS):
        dist.recv(told, 0, group=group)
        told.fill_(time.time())
        dist.send(told, 0, group=group)


def _links(rank: int, world: int, device: str) -> Iterator[Link]:
    """Every pair once, as many at a time as share no rank."""
    for pairs in rounds(world):
        dist.barrier()
        for low, high in pairs:
            if rank in (low, high):
                latency, speed = _trips(rank == low, high if rank == low else low, device)
                if rank == low:
                    yield Link(ranks=(low, high), latency_seconds=latency, bytes_per_second=speed)


def rounds(world: int) -> Iterator[list[tuple[int, int]]]:
    """Pairs of ranks in rounds in which none is in two of them, by the circle method."""
    ring = list(range(world + world % 2))
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        facing = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in facing if max(pair) < world]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _trips(first: bool, other: int, device: str) -> tuple[float, float]:
    small = torch.zeros(2, dtype=torch.float32).to(device)
    large = torch.zeros(_LARGE // 4, dtype=torch.float32).to(device)
    latency = min(_trip(small, first, other) for _ in range(_PINGS)) / 2
    seconds = min(_trip(large, first, other) for _ in range(_TRIPS))
    return latency, 2 * _LARGE / seconds


def _trip(message: torch.Tensor, first: bool, other: int) -> float:
    begun = time.perf_counter()
    for sends in (first, not first):
        if sends:
            dist.send(message, other)
        else:
            dist.recv(message, other)
    # Reading a number waits for the device.
    float(message[0])
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
