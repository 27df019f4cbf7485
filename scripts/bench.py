"""What the pipeline itself costs, and where a run's time goes; ``make bench`` prints it.

    python -m scripts.bench [--reports FOLDER] [--repeat N]

Nothing is trained. The figures come from the verdicts and rank records of the newest finished
run, from ``pipeline.py status``, which is started a few times and measured, and from judging
made-up records of many ranks. They are recorded for people to compare, and nothing judges them.

Exit status: 0 done; 2 there is no finished run; 5 a verdict or a record cannot be read.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from scripts.synthetic import Judged, measure
from stages import stages_of
from trn_validate import yaml_file
from trn_validate.config import Plan
from trn_validate.errors import TrnValidateError, UsageError, exit_status
from trn_validate.ranks import RankRecord, read_rank
from trn_validate.run import PLAN, Run
from trn_validate.store import Store
from trn_validate.verdict import Outcome, Verdict

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("import", "build", "train")
"""What a rank's closing record divides its time into."""

_RANKS = (64, 1024)
_ANSWERED = (Outcome.PASSED, Outcome.FAILED, Outcome.UNSUPPORTED)
_NOTE = """\
own: seconds of the stage in which no launch was alive. import, build and train: the slowest
rank of each launch, all launches added. other: the rest of each launch's time (torchrun,
teardown, launches that do not train). Launches that ran side by side both count."""


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """Where the seconds of one stage went."""

    stage: str
    wall: float
    own: float
    """Seconds in which none of its launches was alive."""
    phases: tuple[float, ...]
    """Seconds by :data:`PHASES`."""
    other: float
    """Seconds of its launches that belong to none of these."""
    probe: float
    """Seconds that all ranks together spent in the probe."""
    stepping: float
    """Seconds that all ranks together spent in optimizer steps, the probe's among them."""
    steps: int
    """Optimizer steps of all ranks together."""
    captures: int
    """Times that a rank gathered its tensors."""
    capturing: float
    """Seconds that all ranks together spent in that."""


@dataclass(frozen=True)
class StatusCost:
    """What ``pipeline.py status`` takes."""

    seconds: tuple[float, ...]
    peak_bytes: int


def newest_finished(reports: Path) -> tuple[Run, list[Verdict]]:
    """The newest run in which every stage of its plan has measured, and its verdicts.

    Raises:
        UsageError: there is none.
    """
    for run in Store(reports).runs():
        verdicts = [run.read(stage) for stage in _stages(run)]
        answered = [v for v in verdicts if v is not None and v.outcome in _ANSWERED]
        if answered and len(answered) == len(verdicts):
            return run, answered
    raise UsageError(
        "there is no finished run to measure", where=str(reports), todo="Make one: make validate"
    )


def _stages(run: Run) -> list[str]:
    """Stages of the plan that the run was made with; none where it is another version's."""
    try:
        raw = yaml_file.read(run.folder / PLAN)
        return [stage.id for stage in stages_of(Plan.model_validate_json(json.dumps(raw)))]
    except (UsageError, ValidationError):
        return []


def cost(run: Run, verdict: Verdict) -> StageCost:
    """Where the seconds of a stage went, from its verdict and its ranks' records.

    Raises:
        EvidenceError: a record cannot be read.
    """
    folder = run.folder / verdict.stage / str(verdict.attempt)
    launches = [list(_records(folder / c.name / "records")) for c in verdict.commands]
    phases = tuple(sum(_slowest(ranks, phase) for ranks in launches) for phase in PHASES)
    records = [record for ranks in launches for record in ranks]
    steps = [step for record in records for step in record.steps]
    captured = [line.seconds for record in records for line in record.captures]
    return StageCost(
        stage=verdict.stage,
        wall=verdict.seconds,
        own=verdict.seconds - verdict.launch_seconds,
        phases=phases,
        other=sum(command.seconds for command in verdict.commands) - sum(phases),
        probe=sum(step.seconds.get("probe", 0.0) for step in steps),
        stepping=sum(step.seconds.get("total", 0.0) for step in steps),
        steps=len(steps),
        captures=len(captured),
        capturing=sum(captured),
    )


def _records(folder: Path) -> Iterable[RankRecord]:
    found = (read_rank(path) for path in sorted(folder.glob("rank-*.jsonl")))
    return (record for record in found if record is not None)


def _slowest(ranks: Sequence[RankRecord], phase: str) -> float:
    closings = (record.rank.closing for record in ranks)
    return max((c.seconds.get(phase, 0.0) for c in closings if c is not None), default=0.0)


def measure_status(reports: Path, repeat: int) -> StatusCost:
    """Start ``pipeline.py status`` so often and take its time and its peak memory.

    Raises:
        UsageError: it refuses to answer.
    """
    argv = [sys.executable, str(ROOT / "pipeline.py"), "status", "--reports", str(reports)]
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - began)
        # Any other status is a run that stands so, and an answer.
        if done.returncode == UsageError.exit_status:
            raise UsageError(f"status gives no answer ({done.stderr.strip()})", where=str(reports))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return StatusCost(tuple(seconds), peak * 1024)


def render(
    run: str, costs: Sequence[StageCost], status: StatusCost, judged: Sequence[Judged]
) -> str:
    """The whole answer as text."""
    wall, own = sum(c.wall for c in costs), sum(c.own for c in costs)
    probe, stepping = sum(c.probe for c in costs), sum(c.stepping for c in costs)
    captures, gathering = sum(c.captures for c in costs), sum(c.capturing for c in costs)
    low, high = min(status.seconds), max(status.seconds)
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
        _line(
            "status, wall time",
            f"{statistics.median(status.seconds):.2f} s",
            f"median of {len(status.seconds)}, {low:.2f} s to {high:.2f} s",
        ),
        _line("status, peak memory", f"{status.peak_bytes / 2**20:.0f} MiB", "largest of them"),
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
    asked = parser.parse_args(arguments)
    if asked.repeat < 1:
        parser.error("--repeat has to be at least 1")
    reports = asked.reports.absolute()
    try:
        run, verdicts = newest_finished(reports)
        costs = [cost(run, verdict) for verdict in verdicts]
        status = measure_status(reports, asked.repeat)
        judged = [measure(ranks, 100) for ranks in _RANKS]
        print(render(run.name, costs, status, judged), end="")
    except TrnValidateError as error:
        print(f"bench: {error}", file=sys.stderr)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
