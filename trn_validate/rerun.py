"""The command that runs one stage again, as a verdict names it."""

from __future__ import annotations

import shlex

from trn_validate.config import Plan
from trn_validate.run import Run
from trn_validate.session import REPORTS

ELSEWHERE = "<reports>"
"""Stands for a reports folder outside of the checkout, whose path would name this machine."""


def rerun_command(plan: Plan, run: Run, stage: str) -> str:
    """The command that reruns one stage of a run, as it is typed in the checkout.

    Where the run is in a folder outside of it, the reader has to put that in: the command
    holds ``'<reports>'``.
    """
    parts = ["python", "pipeline.py", "run", "--config", plan.source, "--path", plan.path]
    for setting in plan.settings:
        parts += ["--set", setting]
    # The stand-in gets quotes like any text: to a shell without them it would be a redirection.
    return shlex.join([*parts, *_reports(run), "--only", stage])


def _reports(run: Run) -> list[str]:
    """Where the run is; nothing where it is taken for granted."""
    folder = run.folder.parent
    if folder == REPORTS:
        return []
    inside = folder.is_relative_to(run.checkout)
    return ["--reports", str(folder.relative_to(run.checkout)) if inside else ELSEWHERE]
