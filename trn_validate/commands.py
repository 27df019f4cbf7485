"""What ``plan``, ``status`` and ``report`` do, once the command line is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from trn_validate.config import Plan
from trn_validate.evidence import evidence
from trn_validate.gate import PASSED, Gate, Standing, exit_status
from trn_validate.review.summary import standing_lines
from trn_validate.run import Run
from trn_validate.session import (
    REPORTS,
    choose_plan,
    continued,
    fingerprint_now,
    newest,
    plan_of,
)
from trn_validate.sources import code_version
from trn_validate.stage import Place, Stage
from trn_validate.store import Store
from trn_validate.verdict import Verdict

StagesOf = Callable[[Plan], Sequence[Stage]]
"""What the command line hands over: the stages of a plan, in gate order."""


def gate_of(stages_of: StagesOf, plan: Plan, run: Run, environment: Mapping[str, str]) -> Gate:
    """The gate of a run, with the product's sources as they are now."""
    code = code_version(run.checkout)
    return Gate(plan, stages_of(plan), run, code=code, environment=environment)


def verdicts_of(standings: Sequence[Standing]) -> dict[str, Verdict]:
    """The verdicts that are there, by stage."""
    return {s.stage.id: s.verdict for s in standings if s.verdict is not None}


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


def show_plan(
    stages_of: StagesOf,
    config: Path | None,
    model_path: str,
    settings: Iterable[str],
    *,
    reports: Path | None = None,
    as_json: bool = False,
) -> int:
    """Say what ``run`` would do, stage by stage, with the exact argument vectors."""
    import shlex

    chosen = choose_plan(config, model_path, settings)
    plan, environment = chosen.plan, fingerprint_now()
    store = Store(reports or REPORTS)
    run, why = continued(store, plan, environment)
    standings = gate_of(stages_of, plan, run, environment).standings() if run else ()
    rows: list[dict[str, object]] = []
    closed = ""
    for place, stage in enumerate(stages_of(plan)):
        standing = standings[place] if standings else None
        keep = standing is not None and standing.opens and not closed
        if not keep:
            closed = closed or stage.id
        reason = _why(standing, keep, closed)
        folder = run.folder if run else store.root / f"{plan.target}.{plan.path}.<start>"
        private = store.private / folder.name / stage.id / "<attempt>"
        seed = folder / "baseline.eager" / "<attempt>" / "seed"
        argvs = [
            list(request.argv)
            for request in stage.launches(Place(plan=plan, private=private, seed=seed))
        ]
        rows.append(
            {"stage": stage.id, "action": "keep" if keep else "run", "why": reason, "argv": argvs}
        )
    if as_json:
        print(json.dumps({"target": plan.target, "path": plan.path, "stages": rows}, indent=2))
        return PASSED
    print(f"plan {plan.source}, path {plan.path}: {chosen.choice.reason or 'chosen by name'}")
    if why:
        print(f"a new run would start: {why}")
    for row in rows:
        print(f"{row['action']:<5} {row['stage']:<24} {row['why']}")
        for argv in row["argv"]:  # type: ignore[attr-defined]  # a list, made above
            print(f"        {shlex.join(argv)}")
    return PASSED


def _why(standing: Standing | None, keep: bool, closed: str) -> str:
    """Why ``run`` would keep a stage or run it; ``closed`` is the first that it would run."""
    if standing is None or standing.verdict is None:
        return "no verdict yet"
    if keep:
        return "its verdict is fresh"
    if not standing.freshness.fresh:
        return str(standing.freshness)
    if not standing.opens:
        return f"its verdict is {standing.verdict.outcome}"
    return f"{closed} before it runs again"


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
    from trn_validate.review.report import write_report

    run, plan, standings = _stand(stages_of, config, model_path, settings, reports)
    print(write_report(run.folder, plan, standings))
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
