"""What ``status`` and ``report`` do, once the command line is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trn_validate.config import Plan
from trn_validate.evidence import evidence
from trn_validate.gate import Gate, Standing, exit_status, first_closed
from trn_validate.rerun import continue_command
from trn_validate.review.summary import standing_lines
from trn_validate.run import Run
from trn_validate.session import REPORTS, choose_plan, fingerprint_now, newest, plan_of
from trn_validate.sources import code_version
from trn_validate.stage import StagesOf
from trn_validate.store import Store
from trn_validate.verdict import Verdict


def gate_of(stages_of: StagesOf, plan: Plan, run: Run, environment: Mapping[str, str]) -> Gate:
    """The gate of a run, with the product's sources as they are now."""
    code = code_version(run.checkout)
    return Gate(plan, stages_of(plan), run, code=code, environment=environment)


def verdicts_of(standings: Sequence[Standing]) -> dict[str, Verdict]:
    """The verdicts that are there, by stage."""
    return {s.stage.id: s.verdict for s in standings if s.verdict is not None}


def next_command(run: Run, plan: Plan, standings: Sequence[Standing]) -> str:
    """What to type next: the stage that said no alone, or what is missing or stale; or nothing."""
    closed = first_closed(standings)
    if closed is None:
        return ""
    if closed.verdict is not None and closed.freshness.fresh:
        return closed.verdict.rerun
    return continue_command(plan, run)


def as_json_of(
    run: Run, plan: Plan, standings: Sequence[Standing], status: int
) -> dict[str, object]:
    """How a run stands, for a machine."""
    real, why = evidence(verdicts_of(standings))
    return {
        "run": run.name,
        "folder": str(run.folder),
        "target": plan.target,
        "path": plan.path,
        "exit_status": status,
        "evidence": real,
        "evidence_reason": why,
        "next": next_command(run, plan, standings),
        "stages": [
            {
                "stage": s.stage.id,
                "outcome": s.verdict.outcome.value if s.verdict else None,
                "state": s.freshness.state.value,
                "reason": s.freshness.reason,
                "opens": s.opens,
            }
            for s in standings
        ],
    }


def show_status(
    stages_of: StagesOf,
    config: Path | None,
    model_path: str | None,
    settings: Iterable[str],
    *,
    reports: Path | None = None,
    as_json: bool = False,
) -> int:
    """Say how the newest run stands, and give the exit status that it has."""
    run, plan, standings = _stand(stages_of, config, model_path, settings, reports)
    status = exit_status(standings)
    if as_json:
        print(json.dumps(as_json_of(run, plan, standings, status), indent=2))
        return status
    for line in standing_lines(run.folder, standings):
        print(line)
    if todo := next_command(run, plan, standings):
        print(f"next: {todo}")
    return status


def write_report_again(
    stages_of: StagesOf,
    config: Path | None,
    model_path: str | None,
    settings: Iterable[str],
    *,
    reports: Path | None = None,
) -> int:
    """Write the report of the newest run from its verdicts; the status is the run's."""
    from trn_validate.review.documents import write_documents

    run, plan, standings = _stand(stages_of, config, model_path, settings, reports)
    print(write_documents(run, plan, standings, stages_of))
    return exit_status(standings)


def _stand(
    stages_of: StagesOf,
    config: Path | None,
    model_path: str | None,
    settings: Iterable[str],
    reports: Path | None,
) -> tuple[Run, Plan, tuple[Standing, ...]]:
    store = Store(reports or REPORTS)
    chosen = list(settings)
    if config is None and model_path is None and not chosen:
        run = newest(store, None)
        plan = plan_of(run)
    else:
        plan = choose_plan(config, model_path or "native", chosen).plan
        run = newest(store, plan)
    return run, plan, gate_of(stages_of, plan, run, fingerprint_now()).standings()
