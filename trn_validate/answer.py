"""What a stage came to: it measured, it could not, a signal came, or we have a defect."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from trn_validate.attempt import Attempt
from trn_validate.errors import EvidenceError, FolderError, Interrupted, TrnValidateError
from trn_validate.paths import write_atomic
from trn_validate.stage import Context, Findings, Unmeasured
from trn_validate.verdict import Artifact, Problem


@dataclass(kw_only=True)
class Answer:
    """What a stage came to, before it is a verdict."""

    findings: Findings
    unmeasured: bool = False
    """It ended before it could measure what it asks."""
    interrupt: Interrupted | None = None
    artifacts: tuple[Artifact, ...] = ()

    def spoil(self, error: TrnValidateError) -> None:
        """Take note that what the verdict would rest on could not be kept."""
        if self.interrupt is None and isinstance(error, Interrupted):
            self.interrupt = error
        # A pass has to show its artifacts; a check that said no stays said.
        no = any(not check.passed for check in self.findings.checks)
        self.unmeasured = self.unmeasured or self.interrupt is not None or not no
        self.findings.problem = self.findings.problem or _problem(error)


def measure(run: Callable[[Context], Findings], context: Context) -> Answer:
    """What the run of a stage came to, however it ended.

    Raises:
        EvidenceError: an artifact of an earlier stage is not what its verdict says.
    """
    try:
        return Answer(findings=run(context))
    except EvidenceError:
        raise
    except Unmeasured as error:
        found = Findings(expects=(), checks=list(error.checks), problem=error.problem)
        return Answer(findings=found, unmeasured=not error.checks)
    except Interrupted as error:
        return Answer(findings=_failed(error), unmeasured=True, interrupt=error)
    except TrnValidateError as error:
        return Answer(findings=_failed(error), unmeasured=True)
    except Exception as error:
        return Answer(findings=_defect(context.attempt, error), unmeasured=True)


def _failed(error: TrnValidateError) -> Findings:
    return Findings(expects=(), problem=_problem(error))


def _problem(error: TrnValidateError) -> Problem:
    cause = "error"
    if isinstance(error, Interrupted):
        cause = "interrupted"
    elif isinstance(error, FolderError):
        cause = "no_space"
    return Problem(cause=cause, what=str(error))


def _defect(attempt: Attempt, error: Exception) -> Findings:
    """A defect of ours: the traceback goes into a log, and the message says so."""
    log = attempt.private / "internal-error.log"
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(FolderError):  # the message below still says what went wrong
        write_atomic(log, text.encode("utf-8", errors="replace"))
    return Findings(
        expects=(),
        problem=Problem(
            cause="internal",
            what=f"a defect of trn-validate: {type(error).__name__}: {error}",
            log=f"{attempt.relative}/{log.name}",
        ),
    )
