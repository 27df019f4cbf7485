"""What ``plan`` does: say what would run and why, with the exact commands; nothing is touched."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trn_validate.commands import gate_of
from trn_validate.config import Plan
from trn_validate.gate import PASSED, Standing
from trn_validate.run import Run
from trn_validate.session import REPORTS, choose_plan, continued, fingerprint_now
from trn_validate.stage import Place, Stage, StagesOf
from trn_validate.store import Store, kind_of


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What ``run`` would do with one stage."""

    stage: str
    action: str
    """``keep`` or ``run``."""
    why: str
    argv: list[list[str]]
    """The argument vector of each of its launches."""


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
    chosen = choose_plan(config, model_path, settings)
    plan, environment = chosen.plan, fingerprint_now()
    store = Store(reports or REPORTS)
    run, why = continued(store, plan, environment)
    rows = _rows(stages_of, plan, store, run, environment)
    if as_json:
        stages = [asdict(row) for row in rows]
        print(json.dumps({"target": plan.target, "path": plan.path, "stages": stages}, indent=2))
        return PASSED
    print(f"plan {plan.source}, path {plan.path}: {chosen.choice.reason or 'chosen by name'}")
    if why:
        print(f"a new run would start: {why}")
    for row in rows:
        print(f"{row.action:<5} {row.stage:<24} {row.why}")
        for argv in row.argv:
            print(f"        {shlex.join(argv)}")
    return PASSED


def _rows(
    stages_of: StagesOf, plan: Plan, store: Store, run: Run | None, environment: Mapping[str, str]
) -> list[_Row]:
    """One row for each stage; from the first that would run, all would."""
    stages = stages_of(plan)
    standings: Sequence[Standing | None] = [None] * len(stages)
    if run is not None:
        standings = gate_of(stages_of, plan, run, environment).standings()
    kind = kind_of(plan.target, plan.path, plan.nodes)
    folder = run.folder if run else store.root / f"{kind}.<start>"
    rows = []
    closed = ""
    for stage, standing in zip(stages, standings, strict=True):
        keep = standing is not None and standing.opens and not closed
        if not keep:
            closed = closed or stage.id
        rows.append(
            _Row(
                stage=stage.id,
                action="keep" if keep else "run",
                why=_why(standing, keep, closed),
                argv=_argvs(stage, plan, folder, store.private),
            )
        )
    return rows


def _argvs(stage: Stage, plan: Plan, folder: Path, private: Path) -> list[list[str]]:
    """The argument vectors of a stage's launches, in a run that may not be there yet."""
    place = Place(
        plan=plan,
        private=private / folder.name / stage.id / "<attempt>",
        seed=folder / "baseline.eager" / "<attempt>" / "seed",
    )
    return [list(request.argv) for request in stage.launches(place)]


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
