"""Records of many ranks that never ran, judged: how long it takes, and how much memory.

    python -m scripts.synthetic --ranks 1024 --steps 100

``make bench`` starts it at two numbers of ranks, each in a process of its own, since a peak of
memory is one of a process. The numbers inside the records are made up and never leave it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from trn_validate.folding import read_ranks
from trn_validate.parity import Limit, parity_checks
from trn_validate.records import Captured, Closing, Header, Moment, Step, rank_file
from trn_validate.spec import Degrees

ROOT = Path(__file__).resolve().parent.parent
PARAMETERS = 25
_TP = 4
_BATCH = 4096


@dataclass(frozen=True)
class Judged:
    """What judging cost."""

    ranks: int
    steps: int
    seconds: float
    peak_bytes: int
    """Of the whole process."""
    record_bytes: int


def write(folder: Path, ranks: int, steps: int) -> int:
    """Write what healthy ranks of dp_shard x tp would have written; gives the bytes."""
    return sum(_write_rank(folder, rank, ranks, steps) for rank in range(ranks))


def _write_rank(folder: Path, rank: int, ranks: int, steps: int) -> int:
    tp = min(_TP, ranks)
    header = Header(
        launch="synthetic",
        rank=rank,
        local_rank=rank % 64,
        world_size=ranks,
        dp_rank=rank // tp,
        pid=1000 + rank,
        started=1.5e9,
        python="3.12.0",
        versions={"torch": "2.14.0", "torchtitan": "0.3.0"},
        torchtitan_device="cpu",
        parameter_device="cpu",
        comm_backend="gloo",
        degrees=Degrees(dp_shard=ranks // tp, tp=tp),
        local_batch_size=1,
        accumulation=1,
        parameters=10**9,
        vocab_size=151_936,
        threads=1,
        replaced=("data", "probe"),
        hooks=(),
    )
    captured = (_captured(moment) for moment in get_args(Moment))
    lines = (
        header,
        *captured,
        *(_step(number, rank // tp) for number in range(1, steps + 1)),
        Closing(rank=rank, steps=steps, seconds={"import": 7.0, "build": 1.0, "train": 9.0}),
    )
    text = "".join(line.model_dump_json() + "\n" for line in lines)
    return rank_file(folder, rank).write_text(text, encoding="utf-8")


def _step(number: int, dp_rank: int) -> Step:
    return Step(
        step=number,
        loss=12.0 - 0.01 * number,
        loss_here=True,
        grad_norm=1.0 + 0.001 * number,
        learning_rate=3e-4,
        tokens=_BATCH,
        rows=f"{number * 10**6 + dp_rank:032x}",
        row_count=1,
        shapes=((1, _BATCH),),
        seconds={
            **{"data": 0.01, "forward_backward": 0.5, "optimizer": 0.1},
            **{"probe": 0.001, "capture": 0.0, "total": 0.7},
        },
        peak_memory_bytes=2**34,
    )


def _captured(moment: Moment) -> Captured:
    names = [f"layers.{n}.attention.wq.weight" for n in range(PARAMETERS)]
    return Captured(
        what=moment,
        mode="sketch",
        stage=0,
        file=None,
        norms=dict.fromkeys(names, 1.0),
        digests=dict.fromkeys(names, "0" * 64),
        seconds=0.1,
    )


def judge(folder: Path, ranks: int, steps: int) -> float:
    """Read the records and hold the run against itself; gives the seconds.

    Raises:
        RuntimeError: a check failed, so that something else was measured than is said.
    """
    began = time.perf_counter()
    records = read_ranks(folder, ranks)
    checks = parity_checks(
        "synthetic",
        records.steps,
        records.steps,
        steps=steps,
        loss=Limit(0.0),
        grad_norm=Limit(0.0),
    )
    seconds = time.perf_counter() - began
    whole = all(rank.complete for rank in records.ranks.values()) and not records.apart
    if len(records.ranks) != ranks or not whole or not all(check.passed for check in checks):
        raise RuntimeError("the synthetic records did not pass")
    return seconds


def measure(ranks: int, steps: int) -> Judged:
    """Write and judge so many in a process of its own."""
    argv = [sys.executable, "-m", "scripts.synthetic"]
    argv += ["--ranks", str(ranks), "--steps", str(steps)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    return Judged(**json.loads(done.stdout))


def main() -> None:
    """Write, judge, and print what it cost as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write(Path(folder), asked.ranks, asked.steps)
        seconds = judge(Path(folder), asked.ranks, asked.steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(asdict(Judged(asked.ranks, asked.steps, seconds, peak, size))))


if __name__ == "__main__":
    main()
