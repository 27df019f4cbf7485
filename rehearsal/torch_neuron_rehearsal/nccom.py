"""Stands in for nccom-test: collectives of the rehearsal device, checked and timed.

Its options are those that the product uses, of the vendor's guide. Each rank is a thread with a
core and a process group of its own, so that one import of torch serves all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    Backend,
    HashStore,
    ReduceScatterOptions,
    Store,
)

from torch_neuron_rehearsal.group import over_gloo

TIMES = 5
"""Runs of which the mean is told."""
_WIDTH = 4
"""Bytes of a float32."""

Collective = Callable[[Backend, torch.Tensor], torch.Tensor]


def all_reduce(group: Backend, sent: torch.Tensor) -> torch.Tensor:
    """Sum of all ranks."""
    found = sent.clone()
    group.allreduce([found], AllreduceOptions()).wait()  # type: ignore[attr-defined]  # not in the stub
    return found


def all_gather(group: Backend, sent: torch.Tensor) -> torch.Tensor:
    """What every rank sent, one after the other."""
    found = sent.new_empty(group.size() * sent.numel())
    group._allgather_base(found, sent, AllgatherOptions()).wait()  # type: ignore[attr-defined]  # not in the stub
    return found


def reduce_scatter(group: Backend, sent: torch.Tensor) -> torch.Tensor:
    """This rank's part of the sum."""
    found = sent.new_empty(sent.numel() // group.size())
    group._reduce_scatter_base(found, sent, ReduceScatterOptions()).wait()  # type: ignore[attr-defined]  # not in the stub
    return found


OPERATIONS: dict[str, Collective] = {
    "allr": all_reduce,
    "allg": all_gather,
    "redsct": reduce_scatter,
}


def made(rank: int, count: int) -> torch.Tensor:
    """What a rank sends: whole numbers, so that sums are exact."""
    return torch.arange(count, dtype=torch.float32).remainder(97) + rank


def expected(operation: str, rank: int, ranks: int, count: int) -> torch.Tensor:
    """What a rank has to get, computed on the host."""
    every = [made(other, count) for other in range(ranks)]
    if operation == "allg":
        return torch.cat(every)
    total = torch.stack(every).sum(0)
    return total if operation == "allr" else total.chunk(ranks)[rank]


def run(rank: int, *, store: Store, ranks: int, operation: str, counts: list[int]) -> float:
    """Check and time all sizes on one rank; seconds of the last.

    Raises:
        ArithmeticError: what came was not what had to come.
    """
    torch.accelerator.set_device_index(rank)
    group = over_gloo(store, rank, ranks, timedelta(seconds=60))
    spent = 0.0
    for count in counts:
        sent = made(rank, count).to("neuron")
        found = OPERATIONS[operation](group, sent).cpu()
        if not torch.equal(found, expected(operation, rank, ranks, count)):
            raise ArithmeticError(f"{operation} of {count} elements is wrong on rank {rank}")
        began = time.perf_counter()
        for _ in range(TIMES):
            OPERATIONS[operation](group, sent)
        spent = (time.perf_counter() - began) / TIMES
    return spent


def main(arguments: list[str]) -> int:
    """Run one operation at all sizes, and report; exit status 1 where a result is wrong."""
    asked = _parse(arguments)
    sizes: list[int] = []
    while not sizes or sizes[-1] < asked.e:
        sizes.append(sizes[-1] * asked.f if sizes else asked.b)
    results = []
    with ThreadPoolExecutor(asked.r) as pool:
        for size in sizes:
            one = partial(
                run,
                store=HashStore(),
                ranks=asked.r,
                operation=asked.operation,
                counts=[size // _WIDTH],
            )
            try:
                slowest = max(pool.map(one, range(asked.r)))
            except (ArithmeticError, RuntimeError) as error:
                print(f"{asked.operation}: {error}", file=sys.stderr)
                return 1
            results.append({"size(B)": size, "type": "fp32", "time:avg(us)": slowest * 1e6})
    report = Path(asked.report_to_json_file)
    report.write_text(json.dumps({"results": results}), encoding="utf-8")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nccom-test")
    parser.add_argument("operation", choices=sorted(OPERATIONS))
    for option in ("-r", "-b", "-e", "-f"):
        parser.add_argument(option, type=int, required=True)
    parser.add_argument("-d", choices=["fp32"], required=True)
    parser.add_argument("--check", action="store_true", required=True)
    parser.add_argument("--non-interactive", action="store_true")
    parser.add_argument("--report-to-json-file", required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
