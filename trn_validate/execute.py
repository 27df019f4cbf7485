"""Running one stage: a fresh attempt, its findings, and the verdict that they make.

Whatever happens in a stage, a verdict is written: an interrupt, a full disk and a defect of our
own all leave ``error``. Only evidence that is not what it was is no stage's to answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from trn_validate.allocation import job_of
from trn_validate.answer import Answer, measure
from trn_validate.config import Plan
from trn_validate.errors import (
    EvidenceError,
    FolderError,
    MeasurementError,
    TrnValidateError,
)
from trn_validate.freshness import Inputs
from trn_validate.gate import Standing
from trn_validate.launch import Launcher
from trn_validate.leaving import leave
from trn_validate.rerun import rerun_command
from trn_validate.run import Attempt, Run
from trn_validate.stage import Context, Findings, Stage
from trn_validate.target import Choice
from trn_validate.verdict import Artifact, Host, Verdict

FIRST = "environment.device"
"""The stage that asks whether there is a device to be watched."""


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
        context = self._context(attempt, earlier)
        began, started = time.monotonic(), _now()
        answer = self._answer(stage, context)
        verdict = Verdict(
            **self._frame(attempt, expected),
            **found_fields(answer, context),
            rerun=rerun_command(self.plan, self.run, stage.id),
            started_at=started,
            seconds=time.monotonic() - began,
        )
        try:
            self.run.write(verdict, attempt)
        except FolderError as error:
            unwritten = MeasurementError(f"no verdict of {stage.id}: {error}")
            raise answer.interrupt or unwritten from error
        if answer.interrupt is not None:
            raise answer.interrupt
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
            rerun=rerun_command(self.plan, self.run, by),
            started_at=_now(),
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
            trn2_functions=signs.trn2_functions,
            job=job_of() if self.plan.launcher == "slurm" else None,
        )

    def _context(self, attempt: Attempt, earlier: Sequence[Standing]) -> Context:
        """What the stage is given."""
        return Context(
            plan=self.plan,
            stage=attempt.stage,
            run=self.run,
            attempt=attempt,
            launcher=self._launcher(),
            choice=self.choice,
            earlier={s.stage.id: s.verdict for s in earlier if s.verdict is not None},
            say=self.say,
        )

    def _launcher(self) -> Launcher:
        """What starts the launches: on a neuron plan it sees the cores free around each."""
        if self.plan.profile.device != "neuron":
            return self.launcher
        from trn_validate.neuron.freed import Freed

        return Freed(self.launcher, Path(self.choice.signs.host_root))

    def _answer(self, stage: Stage, context: Context) -> Answer:
        """Let the stage measure, then keep what its verdict will rest on.

        Raises:
            EvidenceError: an artifact of an earlier stage is not what its verdict says.
        """
        try:
            answer = measure(self._run_of(stage), context)
        except EvidenceError:
            with contextlib.suppress(FolderError):  # the next run publishes what is left
                self._settle(context.attempt)
            raise
        try:
            left = leave(context)
            published = self._settle(context.attempt)
            answer.artifacts = self._artifacts(answer.findings, published, left)
        except TrnValidateError as error:
            answer.spoil(error)
        return answer

    def _run_of(self, stage: Stage) -> Callable[[Context], Findings]:
        """How the stage measures: on a neuron plan the device's counters are read around it."""
        if self.plan.profile.device != "neuron" or stage.id == FIRST:
            return stage.run
        from trn_validate.neuron.watch import watched

        return partial(watched, stage.run)

    def _settle(self, attempt: Attempt) -> tuple[str, ...]:
        """Publish the attempt's texts, give their names, and drop torchtitan's dumps.

        Raises:
            TrnValidateError: no space, or a signal.
        """
        try:
            return self.run.publish(attempt)
        finally:
            # Checkpoints that a verdict names were moved out; the rest would fill the disk.
            attempt.drop_dumps()

    def _artifacts(
        self, findings: Findings, published: Sequence[str], left: Sequence[str]
    ) -> tuple[Artifact, ...]:
        """Hash what was ``left``, and what is named: where nothing is, all launches with a text.

        Raises:
            TrnValidateError: a file that changes while it is read, or a signal.
        """
        named = findings.artifacts or sorted({"/".join(n.split("/")[:3]) for n in published})
        artifacts = [a for name in (*named, *left) for a in self._hash(name)]
        return tuple({artifact.path: artifact for artifact in artifacts}.values())

    def _hash(self, name: str) -> tuple[Artifact, ...]:
        path = self.run.folder / name
        if path.is_dir():
            return self.run.tree(name)
        return (self.run.artifact(name),) if path.is_file() else ()


def found_fields(answer: Answer, context: Context) -> dict[str, Any]:
    """Fields of a verdict that come from what the stage found and started."""
    findings = answer.findings
    return {
        "device": findings.device,
        "execution": findings.execution,
        "expects": findings.expects,
        "checks": tuple(findings.checks),
        "compared": tuple(findings.compared),
        "layout": findings.layout,
        "measures": findings.measures,
        "series": findings.series,
        "capabilities": tuple(findings.capabilities),
        "facts": findings.facts,
        "versions": findings.versions,
        "commands": tuple(context.commands),
        "hooks": tuple(sorted(context.hooks)),
        "artifacts": answer.artifacts,
        "problem": findings.problem,
        "unmeasured": answer.unmeasured,
        "unsupported": findings.unsupported,
        "launch_seconds": context.launch_seconds,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
