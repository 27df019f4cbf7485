"""One walk over some stages: each without a defect, then with each of its defects."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.defects.defect import Defect
from tests.defects.found import Finding, Findings, repetition
from tests.defects.groups import GroupLauncher, Injection
from tests.defects.micro import ENVIRONMENT, first_rung_alone
from trn_validate.config import Plan
from trn_validate.errors import MeasurementError
from trn_validate.execute import Executor
from trn_validate.gate import Gate, Standing
from trn_validate.ranks import read_each
from trn_validate.run import Run
from trn_validate.stage import Stage
from trn_validate.target import Signs, choose
from trn_validate.verdict import Outcome, Verdict

_CODE = "0" * 64
"""Nothing here goes stale, so the sources are not asked."""


class Walk:
    """The stages of one run, judged by themselves; only the launcher is not theirs."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        run: Run,
        found: Findings,
        say: Callable[[str], None],
        stopped: threading.Event,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.run = run
        self.found = found
        self.say = say
        self.stopped = stopped
        self.launcher = GroupLauncher(folder)
        self.standings: list[Standing] = []
        self.repeated: set[str] = set()
        """Clean launches of batches that are done."""

    def batch(self, stages: Sequence[Stage], defects: Iterable[Defect]) -> None:
        """Stages that share their groups of ranks, which end with them.

        Raises:
            MeasurementError: a stage does not pass without a defect.
        """
        try:
            for stage in stages:
                if not any(s.stage.id == stage.id for s in self.standings):
                    self.clean(stage)
            for stage in stages:
                for defect in (d for d in defects if d.stage == stage.id):
                    self._defect(stage, defect)
            for name in self._layouts():
                self._again(name)
            self.repeated = set(self.launcher.kept)
        except BaseException:
            self.stopped.set()
            raise
        finally:
            self.launcher.stop()

    def clean(self, stage: Stage) -> None:
        """Run a stage without a defect and let its verdict stand.

        Raises:
            MeasurementError: it does not pass.
        """
        verdict = self._execute(stage, self.standings)
        self.standings.append(self._gate(stage).standing(stage, self.standings))
        self.found.clean[stage.id] = verdict
        self.say(f"{stage.id} without a defect: {verdict.outcome} in {verdict.seconds:.1f} s")
        if verdict.outcome is not Outcome.PASSED:
            why = verdict.problem.what if verdict.problem else ""
            failed = "; ".join(str(check) for check in verdict.failed_checks)
            raise MeasurementError(
                f"{stage.id} does not pass without a defect ({why or failed or 'checks missing'})",
                where=str(self.folder),
            )

    def adopt(self, stage: Stage) -> None:
        """Take a verdict that another walk has made, of which this run is a copy."""
        self.standings.append(self._gate(stage).standing(stage, self.standings))

    def _execute(self, stage: Stage, earlier: Sequence[Standing]) -> Verdict:
        if self.stopped.is_set():
            raise MeasurementError("the other walk has ended", where=str(self.folder))
        gate = self._gate(stage)
        executor = Executor(
            plan=gate.plan, run=self.run, launcher=self.launcher, choice=choose(Signs())
        )
        return executor.execute(stage, gate.expected(stage, earlier), earlier)

    def _gate(self, stage: Stage) -> Gate:
        # One compiled layout shows what Dynamo does; four ranks would compile for a minute more.
        compiled = stage.id == "kernels.compile"
        plan = first_rung_alone(self.plan) if compiled else self.plan
        return Gate(plan, (stage,), self.run, code=_CODE, environment=ENVIRONMENT)

    def _defect(self, stage: Stage, defect: Defect) -> None:
        place = next(i for i, s in enumerate(self.standings) if s.stage.id == stage.id)
        self.launcher.injection = Injection(
            defect.import_path, frozenset(defect.launches), frozenset(defect.follow)
        )
        try:
            verdict = self._execute(stage, self.standings[:place])
        finally:
            self.launcher.injection = None
        finding = Finding(
            defect=defect,
            outcome=verdict.outcome,
            failed=verdict.failed_checks,
            made=tuple(check.name for check in verdict.checks),
            problem=verdict.problem.what if verdict.problem else "",
            seconds=verdict.seconds,
        )
        self.found.defects.append(finding)
        names = ", ".join(check.name for check in finding.failed) or "nothing"
        self.say(f"{defect.name}: {names} said no in {verdict.seconds:.1f} s")
        for folder in (self.run.folder, self.run.private):
            shutil.rmtree(folder / stage.id / str(verdict.attempt), ignore_errors=True)

    def _layouts(self) -> list[str]:
        """The first clean launch of each layout in each group of ranks of this batch."""
        names: dict[object, str] = {}
        for name in (n for n in self.launcher.kept if n not in self.repeated):
            spec = self.launcher.spec(name)
            if spec.checkpoint.load_path is not None and not spec.checkpoint.load_safetensors:
                names.setdefault((self.launcher.role(name), spec.degrees), name)
        return list(names.values())

    def _again(self, name: str) -> None:
        """Repeat a launch, and hold it against its first time."""
        world = self.launcher.spec(name).degrees.world_size
        first = dict(read_each(self.launcher.kept[name] / "records", world))
        folder = self.folder / "again" / name
        last = dict(read_each(self.launcher.again(name, folder), world))
        result = repetition(name, first, last)
        self.found.repetitions.append(result)
        self.say(f"{name} again: {'equal' if result.equal else result.differing[:3]}")
        shutil.rmtree(folder, ignore_errors=True)
