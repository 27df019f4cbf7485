"""What the pipeline itself costs, and where a run's time goes; ``make bench`` prints it.

    python -m scripts.bench [--reports FOLDER] [--repeat N] [--again STAGE] [--kernel-pairs N]

The figures come from the verdicts and rank records of the newest finished run, from a copy of it
in which one stage is run again, from ``pipeline.py status`` and a Trn2 plan where no Trn2 is, which
are started a few times, and from judging made-up records of many ranks. They are for people to
compare, and nothing judges them.

Exit status: 0 done; 2 there is no finished run; 5 a verdict or a record cannot be read.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.again import Again, run_again, timed_pairs
from scripts.costs import PHASES, StageCost, cost, newest_finished
from scripts.synthetic import Judged, measure
from trn_validate.errors import TrnValidateError, UsageError, exit_status
from trn_validate.gate import ABSENT
from trn_validate.kernel_ops import STAGE as KERNELS
from trn_validate.target import CPU, choose, host_root, read_signs
from trn_validate.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
_RANKS = (64, 1024)
_RUNGS = "parallelism."
_ABSENT = "configs/trn2.48xlarge.yaml"
_NOTE = """\
own: seconds of the stage in which no launch was alive. import, build and train: the slowest
rank of each launch, all launches added. other: the rest of each launch's time (torchrun,
teardown, launches that do not train). Launches that ran side by side both count."""


@dataclass(frozen=True)
class CommandCost:
    """What a command takes that trains nothing."""

    seconds: tuple[float, ...]
    peak_bytes: int


def measure_status(reports: Path, repeat: int) -> CommandCost:
    """Start ``pipeline.py status`` so often and take its time and its peak memory.

    Raises:
        UsageError: it refuses to answer.
    """
    # Any status but that of wrong usage is a run that stands so, and an answer.
    answers = set(range(256)) - {UsageError.exit_status}
    return _measure(["status", "--reports", str(reports)], repeat, answers)


def measure_absent(repeat: int) -> CommandCost:
    """Start a Trn2 plan so often where no Trn2 is, and take its time and its peak memory.

    Raises:
        UsageError: it does not say that the device is absent.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--config", str(ROOT / _ABSENT), "--new", "--reports", folder]
        return _measure(command, repeat, {ABSENT})


def _measure(command: Sequence[str], repeat: int, answers: Container[int]) -> CommandCost:
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        argv = [sys.executable, str(ROOT / "pipeline.py"), *command]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - began)
        if done.returncode not in answers:
            why = done.stderr.strip()
            raise UsageError(f"{command[0]} gives no answer ({why})", where=" ".join(command))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return CommandCost(tuple(seconds), peak * 1024)


def chosen(verdicts: Sequence[Verdict], name: str | None) -> Verdict | None:
    """The verdict of the stage to run again: without a name, of the first rung that adds one.

    Raises:
        UsageError: the run has no stage of that name.
    """
    if name == "none":
        return None
    found = [v for v in verdicts if (v.stage == name if name else v.stage.startswith(_RUNGS))]
    if name and not found:
        known = ", ".join(verdict.stage for verdict in verdicts)
        raise UsageError(
            "the run has no such stage", where=f"--again {name}", todo=f"One of: {known}"
        )
    return found[0] if found else None


def render(
    run: str,
    costs: Sequence[StageCost],
    status: CommandCost,
    judged: Sequence[Judged],
    again: Again | None = None,
    absent: CommandCost | None = None,
) -> str:
    """The whole answer as text."""
    wall, own = sum(c.wall for c in costs), sum(c.own for c in costs)
    probe, stepping = sum(c.probe for c in costs), sum(c.stepping for c in costs)
    captures, gathering = sum(c.captures for c in costs), sum(c.capturing for c in costs)
    lines = [
        f"run {run}: {len(costs)} stages",
        "",
        *_table(costs),
        _NOTE,
        "",
        _line("the pipeline's own share", _share(own, wall), f"{own:.1f} s of {wall:.1f} s"),
        _line(
            "the probe's share of the steps",
            _share(probe, stepping),
            f"{probe:.3f} s of {stepping:.1f} s, {sum(c.steps for c in costs)} steps of all ranks",
        ),
        _line(
            "a capture of tensors",
            f"{gathering / captures:.3f} s" if captures else "-",
            f"{gathering:.1f} s of all ranks, {captures} captures",
        ),
        _line("in the compiler", f"{sum(c.compiling for c in costs):.1f} s", "part of train"),
        *(_again(again) if again else ()),
        _line("status, wall time", *_wall(status)),
        _line("status, peak memory", f"{status.peak_bytes / 2**20:.0f} MiB", "largest of them"),
        *([_line("a Trn2 plan without a Trn2", *_wall(absent))] if absent else ()),
        *(
            _line(
                f"judging {cost.ranks} ranks x {cost.steps} steps",
                f"{cost.seconds:.2f} s",
                f"peak memory {cost.peak_bytes / 2**20:.0f} MiB, made-up records",
            )
            for cost in judged
        ),
    ]
    return "\n".join(lines) + "\n"


def _wall(cost: CommandCost) -> tuple[str, str]:
    low, high = min(cost.seconds), max(cost.seconds)
    detail = f"median of {len(cost.seconds)}, {low:.2f} s to {high:.2f} s"
    return f"{statistics.median(cost.seconds):.2f} s", detail


def _again(again: Again) -> tuple[str, str]:
    took = f"{again.seconds:.1f} s for the command, {again.first:.1f} s in the full run"
    return (
        _line(f"{again.stage} again", f"{again.ratio:.3f}", took),
        _line(
            "peak memory of that command",
            f"{again.peak_bytes / 2**20:.0f} MiB",
            "its own process, without its launches",
        ),
    )


def speeds(verdict: Verdict) -> list[str]:
    """What the stage that trains with kernels says of their speed, one line for each run."""
    ending = ": speed"
    told = [(k, fact) for k, fact in sorted(verdict.facts.items()) if k.endswith(ending)]
    return [f"{name.removesuffix(ending)}, step with kernels: {fact}" for name, fact in told]


def _table(costs: Sequence[StageCost]) -> list[str]:
    rows = [(c.stage, c.wall, c.own, *c.phases, c.other) for c in costs]
    total = ("total", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True)))
    width = max(len(c.stage) for c in costs)
    names = ("wall", "own", *PHASES, "other")
    head = f"{'seconds':<{width}}" + "".join(f"{name:>8}" for name in names)
    return [
        head,
        *(
            f"{label:<{width}}" + "".join(f"{number:>8.1f}" for number in numbers)
            for label, *numbers in (*rows, total)
        ),
    ]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _line(name: str, value: str, detail: str) -> str:
    return f"{name:<32}{value:>9}   {detail}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; gives the exit status."""
    parser = argparse.ArgumentParser(description="Show what the pipeline itself costs.")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports", help="folder of the runs")
    parser.add_argument("--repeat", type=int, default=5, help="how often status is started")
    parser.add_argument("--again", metavar="STAGE", help="stage to run again; none: no stage")
    parser.add_argument(
        "--kernel-pairs", type=int, default=0, help="pairs of runs with kernels and without to time"
    )
    asked = parser.parse_args(arguments)
    if asked.repeat < 1:
        parser.error("--repeat has to be at least 1")
    if asked.kernel_pairs != 0 and asked.kernel_pairs < 2:
        parser.error("--kernel-pairs has to be at least 2")
    reports = asked.reports.absolute()
    try:
        run, verdicts = newest_finished(reports)
        costs = [cost(run, verdict) for verdict in verdicts]
        status = measure_status(reports, asked.repeat)
        judged = [measure(ranks, 100) for ranks in _RANKS]
        repeated = chosen(verdicts, asked.again)
        again = run_again(run, repeated) if repeated else None
        elsewhere = choose(read_signs(host_root())).target == CPU
        absent = measure_absent(asked.repeat) if elsewhere else None
        print(render(run.name, costs, status, judged, again, absent), end="")
        if asked.kernel_pairs > 1:
            (kernels,) = (one for one in verdicts if one.stage == KERNELS)
            print("\n".join(speeds(timed_pairs(run, kernels, asked.kernel_pairs))))
    except TrnValidateError as error:
        print(f"bench: {error}", file=sys.stderr)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
