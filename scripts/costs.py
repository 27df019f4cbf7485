"""Where the seconds of a finished run went, by stage, from its verdicts and rank records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from stages import stages_of
from trn_validate import yaml_file
from trn_validate.config import Plan
from trn_validate.errors import UsageError
from trn_validate.ranks import RankRecord, read_rank
from trn_validate.run import PLAN, Run
from trn_validate.store import Store
from trn_validate.verdict import Outcome, Verdict

PHASES = ("import", "build", "train")
"""What a rank's closing record divides its time into."""

_BEFORE_TRAINING = "environment."

_ANSWERED = (Outcome.PASSED, Outcome.FAILED, Outcome.UNSUPPORTED)


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
    compiling: float = 0.0
    """Seconds in the compiler, of the slowest rank of each compiled launch."""


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
    # What the ranks of an environment stage leave are no records of training.
    training = () if verdict.stage.startswith(_BEFORE_TRAINING) else verdict.commands
    launches = [list(_records(folder / c.name / "records")) for c in training]
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
        compiling=sum(v for k, v in verdict.measures.items() if k.endswith("compile_seconds")),
    )


def _records(folder: Path) -> Iterable[RankRecord]:
    found = (read_rank(path) for path in sorted(folder.glob("rank-*.jsonl")))
    return (record for record in found if record is not None)


def _slowest(ranks: Sequence[RankRecord], phase: str) -> float:
    closings = (record.rank.closing for record in ranks)
    return max((c.seconds.get(phase, 0.0) for c in closings if c is not None), default=0.0)
