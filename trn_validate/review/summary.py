"""The lines that a run, and ``status``, end with on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trn_validate.evidence import evidence
from trn_validate.gate import Standing, first_closed
from trn_validate.verdict import Outcome, Verdict


def decision(standings: Sequence[Standing]) -> str:
    """The run in one line: rehearsal or evidence, and how it stands."""
    real, why = evidence({s.stage.id: s.verdict for s in standings if s.verdict is not None})
    kind = "EVIDENCE" if real else "REHEARSAL"
    closed = first_closed(standings)
    if closed is None:
        accepted = [s.stage.id for s in standings if s.verdict and s.verdict.unsupported]
        note = f", with {', '.join(accepted)} unsupported and accepted" if accepted else ""
        how = f"all {len(standings)} stages passed{note}"
    elif closed.verdict is None:
        how = f"incomplete: {closed.stage.id} has no verdict"
    elif not closed.freshness.fresh:
        how = f"stale: {closed.stage.id} ({closed.freshness.reason})"
    else:
        how = f"{closed.verdict.outcome} at {closed.stage.id}: {closed.verdict.outcome.phrase}"
    return f"{kind}: {how}" + ("" if real else f" (not evidence: {why})")


def shown(path: Path) -> str:
    """A path as short as it can be typed from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def standing_lines(folder: Path, standings: Sequence[Standing]) -> list[str]:
    """One line per stage, then the decision."""
    lines = []
    for standing in standings:
        outcome = standing.verdict.outcome.value if standing.verdict else "-"
        note = "" if standing.freshness.fresh else str(standing.freshness)
        lines.append(f"{outcome:<11} {standing.stage.id:<24} {note}".rstrip())
    return [*lines, decision(standings), f"run: {shown(folder)}"]


def failure_lines(standings: Sequence[Standing]) -> list[str]:
    """What failed first: the check, value and limit, where to look, and how to rerun it."""
    closed = first_closed(standings)
    if closed is None or closed.verdict is None or closed.verdict.outcome is Outcome.BLOCKED:
        return []
    verdict = closed.verdict
    if not closed.freshness.fresh:
        return [
            f"STALE  {verdict.stage}: {closed.freshness.reason}",
            f"  rerun   {verdict.rerun}",
            "",
        ]
    lines = [f"{verdict.outcome.upper()}  {verdict.stage}: {closed.stage.asks}"]
    lines += [f"  check   {check}" for check in verdict.failed_checks[:8]]
    if len(verdict.failed_checks) > 8:
        lines.append(f"          and {len(verdict.failed_checks) - 8} more")
    lines += [f"  missing {name}" for name in verdict.missing if not verdict.unmeasured]
    lines += _problem_lines(verdict)
    if verdict.outcome is Outcome.ERROR and verdict.problem is None and not verdict.missing:
        lines.append("  cause   no check was made, or two sides of a comparison are the same")
    if verdict.unsupported:
        lines.append(f"  reason  {verdict.unsupported}")
    return [*lines, f"  rerun   {verdict.rerun}", ""]


def _problem_lines(verdict: Verdict) -> list[str]:
    problem = verdict.problem
    if problem is None:
        return []
    place = [
        f"{name} {value}"
        for name, value in (("rank", problem.rank), ("step", problem.step))
        if value is not None
    ]
    where = f" ({', '.join(place)})" if place else ""
    lines = [f"  cause   {problem.cause}: {problem.what}{where}"]
    if problem.log:
        lines.append(f"  log     {verdict.run}/{problem.log}")
    lines += [f"          | {line}" for line in problem.excerpt.splitlines()[-6:]]
    return lines


def closing_lines(folder: Path, standings: Sequence[Standing], report: Path) -> list[str]:
    """Where everything is, and the decision last."""
    return [
        f"verdicts  {shown(folder)}/<stage>.json",
        f"report    {shown(report)}",
        decision(standings),
    ]
