"""Running one stage: a fresh attempt, its findings, and the verdict that they make.

Whatever happens in a stage, a verdict is written: an interrupt, a full disk and a defect of our
own all leave ``error``. Only evidence that is not what it was is no stage's to answer.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trn_validate.config import Plan
from trn_validate.errors import (
    EvidenceError,
    FolderError,
    Interrupted,
    MeasurementError,
    TrnValidateError,
)
from trn_validate.freshness import Inputs
from trn_validate.gate import Standing
from trn_validate.launch import Launcher
from trn_validate.launching import DUMP
from trn_validate.neuron.signs import trn2_functions
from trn_validate.paths import write_atomic
from trn_validate.run import Attempt, Run
from trn_validate.stage import Context, Findings, Stage, Unmeasured
from trn_validate.target import Choice
from trn_validate.verdict import Artifact, Host, Problem, Verdict


@dataclass(kw_only=True)
class Executor:
    """Runs stages of one run."""

    plan: Plan
    run: Run
    launcher: Launcher
    choice: Choice
    say: Callable[[str], None] = field(default=lambda text: None)

    def execute(self, stage: Stage, expected: Inputs, earlier: Sequence[Standing]) -> Verdict:
        """Run a stage and write its verdict.

        Raises:
            Interrupted: a signal came; the verdict ``error`` is written first.
            EvidenceError: an artifact of an earlier stage is not what its verdict says.
            FolderError: not even the attempt's folder could be made, so nothing was run.
            MeasurementError: not even the verdict could be written.
        """
        attempt = self.run.new_attempt(stage.id)
        context = Context(
            plan=self.plan,
            stage=stage.id,
            run=self.run,
            attempt=attempt,
            launcher=self.launcher,
            choice=self.choice,
            earlier={s.stage.id: s.verdict for s in earlier if s.verdict is not None},
            say=self.say,
        )
        began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        findings, unmeasured, interrupt = _measure(stage, context)
        artifacts: tuple[Artifact, ...] = ()
        try:
            artifacts = self._settle(attempt, findings)
        except TrnValidateError as error:
            interrupt = interrupt or (error if isinstance(error, Interrupted) else None)
            # A pass has to show its artifacts; a check that said no stays said.
            no = any(not check.passed for check in findings.checks)
            unmeasured = unmeasured or interrupt is not None or not no
            findings.problem = findings.problem or _problem(error)
        verdict = Verdict(
            **self._frame(attempt, expected),
            **_found(findings, context),
            artifacts=artifacts,
            unmeasured=unmeasured,
            rerun=rerun_command(self.plan, stage.id),
            started_at=started,
            seconds=time.monotonic() - began,
        )
        try:
            self.run.write(verdict, attempt)
        except FolderError as error:
            raise interrupt or MeasurementError(f"no verdict of {stage.id}: {error}") from error
        if interrupt is not None:
            raise interrupt
        return verdict

    def block(self, stage: Stage, expected: Inputs, by: str) -> Verdict:
        """Write that a stage did not run, and which stage is in its way."""
        standing = None
        with contextlib.suppress(EvidenceError):  # what cannot be read is replaced
            standing = self.run.read(stage.id)
        if standing is not None and (standing.blocked_by, standing.inputs_sha256) == (
            by,
            expected.sha256,
        ):
            return standing
        attempt = self.run.new_attempt(stage.id)
        verdict = Verdict(
            **self._frame(attempt, expected),
            device="none",
            blocked_by=by,
            rerun=rerun_command(self.plan, by),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=0.0,
        )
        self.run.write(verdict, attempt)
        return verdict

    def _frame(self, attempt: Attempt, expected: Inputs) -> dict[str, Any]:
        """Fields of a verdict that no stage has a say in."""
        return {
            "stage": attempt.stage,
            "path": self.plan.path,
            "run": self.run.name,
            "attempt": attempt.number,
            "host": self.host(),
            "builds_on": expected.builds_on,
            "inputs": expected.parts,
            "inputs_sha256": expected.sha256,
        }

    def host(self) -> Host:
        """The facts behind ``evidence``."""
        signs = self.choice.signs
        return Host(
            root=signs.host_root,
            target=self.plan.target,
            reason=self.choice.reason or self.choice.refusal,
            trn2_functions=trn2_functions(signs),
        )

    def _settle(self, attempt: Attempt, findings: Findings) -> tuple[Artifact, ...]:
        """Publish the attempt's texts, hash what the verdict names, drop torchtitan's dumps.

        Raises:
            TrnValidateError: no space, a file that changes while it is read, or a signal.
        """
        published = self.run.publish(attempt)
        named = findings.artifacts or sorted({"/".join(n.split("/")[:3]) for n in published})
        artifacts = [a for name in named for a in self._hash(name)]
        for dump in attempt.private.glob(f"*/{DUMP}"):
            # Checkpoints that a verdict names were moved out; the rest would fill the disk.
            shutil.rmtree(dump, ignore_errors=True)
        return tuple({artifact.path: artifact for artifact in artifacts}.values())

    def _hash(self, name: str) -> tuple[Artifact, ...]:
        path = self.run.folder / name
        if path.is_dir():
            return self.run.tree(name)
        return (self.run.artifact(name),) if path.is_file() else ()


def _found(findings: Findings, context: Context) -> dict[str, Any]:
    """Fields of a verdict that come from what the stage found and started."""
    return {
        "device": findings.device,
        "execution": findings.execution,
        "expects": findings.expects,
        "checks": tuple(findings.checks),
        "compared": tuple(findings.compared),
        "layout": findings.layout,
        "measures": findings.measures,
        "series": findings.series,
        "facts": findings.facts,
        "versions": findings.versions,
        "commands": tuple(context.commands),
        "hooks": tuple(sorted(context.hooks)),
        "problem": findings.problem,
        "unsupported": findings.unsupported,
        "launch_seconds": context.launch_seconds,
    }


def rerun_command(plan: Plan, stage: str) -> str:
    """The exact command that reruns one stage of this plan."""
    import shlex

    parts = ["python", "pipeline.py", "run", "--config", plan.source, "--path", plan.path]
    for setting in plan.settings:
        parts += ["--set", setting]
    return shlex.join([*parts, "--only", stage])


def _measure(stage: Stage, context: Context) -> tuple[Findings, bool, Interrupted | None]:
    """What the stage found, whether it ended before it could measure, and the signal if any.

    Raises:
        EvidenceError: an artifact of an earlier stage is not what its verdict says.
    """
    try:
        return stage.run(context), False, None
    except EvidenceError:
        raise
    except Unmeasured as error:
        found = Findings(expects=(), checks=list(error.checks), problem=error.problem)
        return found, not error.checks, None
    except Interrupted as error:
        return _failed(error), True, error
    except TrnValidateError as error:
        return _failed(error), True, None
    except Exception as error:
        return _defect(context.attempt, error), True, None


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
