"""Launching with a defect: the run spec of chosen launches gets a hook, nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from stages import stages_of
from trn_validate.commands import gate_of
from trn_validate.execute import Executor
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.launch_local import LocalLauncher
from trn_validate.progress import Progress
from trn_validate.runner import Runner, Selection
from trn_validate.session import choose_plan, fingerprint_now
from trn_validate.store import Store
from trn_validate.verdict import Verdict

TRAINING = "tests.defects.training"


class Injecting(LocalLauncher):
    """The real launcher, with a hook in the run specs of the launches that are named."""

    def __init__(self, hook: str, launches: Iterable[str]) -> None:
        super().__init__()
        self.hook = hook
        self.launches = frozenset(launches)
        self.results: list[LaunchResult] = []

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """Put the hook into the specs, then launch as the parent does."""
        for request in requests:
            if request.name in self.launches:
                path = Path(request.argv[-1])
                spec = json.loads(path.read_text(encoding="utf-8"))
                spec["hooks"] = [f"{TRAINING}:{self.hook}"]
                path.write_text(json.dumps(spec), encoding="utf-8")
        results = super().together(requests)
        self.results += results
        return results


def run_stage(
    reports: Path, stage: str, hook: str, launches: Iterable[str], settings: Iterable[str] = ()
) -> tuple[int, Verdict, Injecting]:
    """Run one stage of the CPU plan with a defect, in a copy of a finished run."""
    chosen = choose_plan(Path("configs/cpu.yaml"), "native", settings)
    run = Store(reports).newest("cpu", "native")
    assert run is not None, "the copy holds a run"
    launcher = Injecting(hook, launches)
    executor = Executor(plan=chosen.plan, run=run, launcher=launcher, choice=chosen.choice)
    gate = gate_of(stages_of, chosen.plan, run, fingerprint_now())
    status = Runner(gate, executor, Progress(1, quiet=True), Selection(only=stage)).run()
    verdict = run.read(stage)
    assert verdict is not None, "a stage always leaves a verdict"
    return status, verdict, launcher
