"""What ``run`` does: walk the line of stages once, and say how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trn_validate.commands import as_json_of, gate_of, verdicts_of
from trn_validate.config import Plan
from trn_validate.errors import Interrupted, TrnValidateError
from trn_validate.evidence import evidence
from trn_validate.execute import Executor
from trn_validate.gate import (
    ABSENT,
    Gate,
    Standing,
    exit_status,
    require_open,
    stage_status,
)
from trn_validate.launchers import launcher_of, node_names
from trn_validate.processes import end_strays, find_strays
from trn_validate.progress import Progress
from trn_validate.review.documents import write_documents
from trn_validate.review.summary import closing_lines, failure_lines
from trn_validate.run import Run
from trn_validate.selection import Selection
from trn_validate.session import (
    REPORTS,
    Chosen,
    choose_plan,
    continued,
    fingerprint_now,
    keep_plan,
    start,
)
from trn_validate.stage import Stage, StagesOf
from trn_validate.store import Store
from trn_validate.target import CPU, Choice


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
    launcher = launcher_of(plan)
    stages = stages_of(plan)
    selection.check_stage(stages, plan.source)
    progress = Progress(len(stages), quiet=as_json)
    for line in _opening_lines(plan, chosen.choice):
        progress.line(line)
    store = Store(reports or REPORTS)
    run = _continue_or_start(store, chosen, environment, stages[0], selection, progress)
    with run.lock():
        # What stands for a node in a verdict is told here alone.
        run.redactor([name] for name in node_names(plan))
        _tidy(store, run, progress)
        executor = Executor(
            plan=plan, run=run, launcher=launcher, choice=chosen.choice, say=progress.say
        )
        gate = gate_of(stages_of, plan, run, environment)
        runner = Runner(gate, executor, progress, selection)
        status, standings, report = _walk_and_report(runner)
    real, why = evidence(verdicts_of(standings))
    if selection.require_evidence and not real:
        progress.line(f"--require-evidence: this is a rehearsal ({why})")
        status = ABSENT
    if as_json:
        print(json.dumps(as_json_of(run, plan, standings, status), indent=2))
        return status
    for line in (*failure_lines(standings), *closing_lines(run.folder, standings, report)):
        print(line)
    return status


def _opening_lines(plan: Plan, choice: Choice) -> list[str]:
    """What has to be known before anything runs."""
    lines = []
    if plan.profile.device == "cpu":
        lines.append("REHEARSAL on the CPU: never adoption evidence")
    if choice.target == plan.target:
        lines.append(f"plan {plan.source}, chosen from the host: {choice.reason}")
        lines += [choice.note] if choice.note and plan.profile.device != "cpu" else []
    else:
        signs = f"select {choice.target}" if choice.target else f"are refused: {choice.refusal}"
        lines.append(f"plan {plan.source}, asked for by name; the host's signs {signs}")
    return lines


def _continue_or_start(
    store: Store,
    chosen: Chosen,
    environment: Mapping[str, str],
    first: Stage,
    selection: Selection,
    progress: Progress,
) -> Run:
    """The run that is selected; nothing is written before it is known that stages may run.

    Raises:
        EvidenceError: a later stage is asked for, and there is no run to continue.
        FolderError: the reports cannot be written, or there is too little space.
    """
    plan = chosen.plan
    run, why = (None, "--new") if selection.new else continued(store, plan, environment)
    if run is None:
        selection.check_first(first, why)
    # Where no sign of the plan's device is, environment.device has to say so, and no more will run.
    absent = plan.profile.device == "neuron" and chosen.choice.target == CPU
    store.check_writable(0 if absent else int(plan.profile.disk_gib * 2**30))
    if run is not None:
        return run
    if why:
        progress.line(f"starting a new run: {why}")
    return start(store, plan, environment)


def _tidy(store: Store, run: Run, progress: Progress) -> None:
    """End what a killed run left alive, then publish what it left on the disk."""
    strays = find_strays()
    left = end_strays(strays)
    if strays:
        ended = len(strays) - len(left)
        progress.line(f"ended {ended} of {len(strays)} processes that a killed run left behind")
    for name in store.publish_leftovers(run):
        progress.line(f"kept what a killed run had recorded: {name}")


def _walk_and_report(runner: Runner) -> tuple[int, tuple[Standing, ...], Path]:
    """Walk the line and write the report, also where a signal ends the walk."""
    gate = runner.gate
    try:
        status = runner.run()
    except Interrupted:
        # A report that still says "passed" would be the last word.
        with suppress(TrnValidateError):
            _write(gate, gate.standings())
        raise
    standings = gate.standings()
    return status, standings, _write(gate, standings)


def _write(gate: Gate, standings: Sequence[Standing]) -> Path:
    """Write all that is made from the verdicts; gives the report's path."""
    return write_documents(gate.run, gate.plan, standings, stages_of=lambda plan: gate.stages)


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
        begin = self.selection.begin
        if begin is None:
            if not self.selection.force:
                # A verdict that cannot be read is told before anything runs.
                self.gate.standings()
            return self._walk(0, reuse=not self.selection.force)
        place = self.gate.stages.index(self.gate.stage(begin))
        # What is about to be replaced need not be readable.
        earlier = self.gate.standings(place)
        require_open(earlier, begin)
        keep_plan(self.gate.run, self.gate.plan)
        if self.selection.only is None:
            return self._walk(place, reuse=False)
        stage = self.gate.stages[place]
        self._execute(stage, earlier)
        now = self.gate.standings()
        for later in now[place + 1 :]:
            if later.verdict is not None and not later.freshness.fresh:
                self.progress.line(f"stale now: {later.stage.id} ({later.freshness.reason})")
        return stage_status(now[place])

    def _walk(self, first: int, *, reuse: bool) -> int:
        """Run the stages from one on, to the last that is asked for; their exit status."""
        keep_plan(self.gate.run, self.gate.plan)
        until = self.selection.until
        end = None if until is None else self.gate.stages.index(self.gate.stage(until)) + 1
        done: list[Standing] = list(self.gate.standings(first))
        closed: str | None = None
        for stage in self.gate.stages[first:end]:
            if closed is not None:
                self.progress.skip()
                verdict = self.executor.block(stage, self.gate.expected(stage, done), closed)
                self.progress.result(verdict)
            elif reuse and (kept := self.gate.standing(stage, done)).opens and kept.verdict:
                self.progress.skip()
                self.progress.result(kept.verdict, reused=True)
            else:
                self._execute(stage, done)
            standing = self.gate.standing(stage, done)
            done.append(standing)
            if closed is None and not standing.opens:
                closed = stage.id
        return exit_status(self.gate.standings(end))

    def _execute(self, stage: Stage, earlier: Sequence[Standing]) -> None:
        expected = self.gate.expected(stage, earlier)
        with self.progress.stage(stage.id, stage.asks):
            verdict = self.executor.execute(stage, expected, earlier)
        self.progress.result(verdict)
