"""The commands that run one stage again, or go on with a run, as they are typed in the checkout."""

from __future__ import annotations

import shlex

from trn_validate.config import Plan
from trn_validate.run import Run
from trn_validate.session import REPORTS

ELSEWHERE = "<reports>"
"""Stands for a reports folder outside of the checkout, whose path would name this machine."""


def rerun_command(plan: Plan, run: Run, stage: str) -> str:
    """The command that reruns one stage of a run.

    Where the run is in a folder outside of the checkout, the reader has to put that in: the
    command holds ``'<reports>'``.
    """
    return shlex.join([*_run(plan, run), "--only", stage])


def continue_command(plan: Plan, run: Run) -> str:
    """The command that runs every stage of a run that is missing, stale or failed."""
    return shlex.join(_run(plan, run))


def _run(plan: Plan, run: Run) -> list[str]:
    parts = ["python", "pipeline.py", "run", "--config", plan.source, "--path", plan.path]
    for setting in plan.settings:
        parts += ["--set", setting]
    # The stand-in gets quotes like any text: to a shell without them it would be a redirection.
    return [*parts, *_reports(run)]


def _reports(run: Run) -> list[str]:
    """Where the run is; nothing where it is taken for granted."""
    folder = run.folder.parent
    if folder == REPORTS:
        return []
    inside = folder.is_relative_to(run.checkout)
    return ["--reports", str(folder.relative_to(run.checkout)) if inside else ELSEWHERE]
