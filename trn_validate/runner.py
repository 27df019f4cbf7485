"""What ``run`` does: walk the line of stages once, and say how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trn_validate.commands import StagesOf, as_json_of, gate_of, verdicts_of
from trn_validate.config import Plan
from trn_validate.errors import ConfigError
from trn_validate.evidence import evidence
from trn_validate.execute import Executor
from trn_validate.gate import ABSENT, Gate, Standing, exit_status, require_open, stage_status
from trn_validate.launch_local import LocalLauncher
from trn_validate.progress import Progress
from trn_validate.review.report import write_report
from trn_validate.review.summary import closing_lines, failure_lines
from trn_validate.run import Run
from trn_validate.session import (
    REPORTS,
    choose_plan,
    continued,
    fingerprint_now,
    keep_plan,
    start,
)
from trn_validate.stage import Stage
from trn_validate.store import Store


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which stages to run, and what counts as done."""

    only: str | None = None
    start: str | None = None
    force: bool = False
    new: bool = False
    require_evidence: bool = False

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ConfigError: both ``--only`` and ``--from``.
        """
        if self.only and self.start:
            raise ConfigError("--only and --from exclude each other", where="command line")


def run_plan(
    stages_of: StagesOf,
    config: Path | None,
    model_path: str,
    settings: Iterable[str],
    selection: Selection,
    *,
    reports: Path | None = None,
    as_json: bool = False,
) -> int:
    """Run a plan's stages in order and say how it ended; gives the exit status."""
    selection.check()
    chosen = choose_plan(config, model_path, settings)
    plan, environment = chosen.plan, fingerprint_now()
    progress = Progress(len(stages_of(plan)), quiet=as_json)
    if plan.profile.device == "cpu":
        progress.line(f"REHEARSAL on the CPU, never adoption evidence: {chosen.choice.reason}")
    for note in filter(None, (chosen.choice.note, chosen.choice.refusal)):
        progress.line(note)
    store = Store(reports or REPORTS)
    store.check_writable(int(plan.profile.disk_gib * 2**30))
    run, why = (None, "--new") if selection.new else continued(store, plan, environment)
    if run is None:
        if why:
            progress.line(f"starting a new run: {why}")
        run = start(store, plan, environment)
    with run.lock():
        store.publish_leftovers(run)
        executor = Executor(
            plan=plan, run=run, launcher=LocalLauncher(), choice=chosen.choice, say=progress.say
        )
        gate = gate_of(stages_of, plan, run, environment)
        status = Runner(gate, executor, progress, selection).run()
        standings = gate.standings()
        report = write_report(run.folder, plan, standings)
    real, why = evidence(verdicts_of(standings))
    if selection.require_evidence and not real:
        progress.line(f"--require-evidence: this is a rehearsal ({why})")
        status = ABSENT
    _print(run, plan, standings, status, report, as_json=as_json)
    return status


class Runner:
    """Walks the line of stages once."""

    def __init__(
        self, gate: Gate, executor: Executor, progress: Progress, selection: Selection
    ) -> None:
        self.gate = gate
        self.executor = executor
        self.progress = progress
        self.selection = selection

    def run(self) -> int:
        """Run what is selected; gives the exit status."""
        begin = self.selection.only or self.selection.start
        if begin is None:
            self._walk(0, reuse=not self.selection.force)
            return exit_status(self.gate.standings())
        place = self.gate.stages.index(self.gate.stage(begin))
        keep_plan(self.gate.run, self.gate.plan)
        earlier = self.gate.standings()[:place]
        require_open(earlier, begin)
        if self.selection.only is None:
            self._walk(place, reuse=False)
            return exit_status(self.gate.standings())
        stage = self.gate.stages[place]
        self._execute(stage, earlier)
        now = self.gate.standings()
        for later in now[place + 1 :]:
            if later.verdict is not None and not later.freshness.fresh:
                self.progress.line(f"stale now: {later.stage.id} ({later.freshness.reason})")
        return stage_status(now[place])

    def _walk(self, first: int, *, reuse: bool) -> None:
        keep_plan(self.gate.run, self.gate.plan)
        done: list[Standing] = list(self.gate.standings()[:first])
        closed: str | None = None
        for stage in self.gate.stages[first:]:
            standing = self.gate.standing(stage, done)
            if closed is not None:
                self.progress.skip()
                verdict = self.executor.block(stage, standing.expected, closed)
                self.progress.result(verdict)
            elif reuse and standing.opens and standing.verdict is not None:
                self.progress.skip()
                self.progress.result(standing.verdict, reused=True)
            else:
                self._execute(stage, done)
            standing = self.gate.standing(stage, done)
            done.append(standing)
            if closed is None and not standing.opens:
                closed = stage.id

    def _execute(self, stage: Stage, earlier: Sequence[Standing]) -> None:
        expected = self.gate.expected(stage, earlier)
        with self.progress.stage(stage.id, stage.asks):
            verdict = self.executor.execute(stage, expected, earlier)
        self.progress.result(verdict)


def _print(
    run: Run,
    plan: Plan,
    standings: Sequence[Standing],
    status: int,
    report: Path,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print(json.dumps(as_json_of(run, plan, standings, status), indent=2))
        return
    for line in failure_lines(standings):
        print(line)
    for line in closing_lines(run.folder, standings, report):
        print(line)
