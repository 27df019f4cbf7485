"""environment.nodes judged again where there is neither a Slurm nor a node of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stages.environment_nodes import FAMILY
from tests.fake_training import NO_SIGNS
from tests.stages.test_environment_nodes import NAMES, answering, loaded
from trn_validate import redact
from trn_validate.config import Plan
from trn_validate.execute import Executor
from trn_validate.freshness import Inputs
from trn_validate.launch import FakeLauncher, LaunchRequest, LaunchResult
from trn_validate.node_records import NodeProbe
from trn_validate.review.rejudge import differing
from trn_validate.review.replay import RecordedRun, Replayed, replay
from trn_validate.run import Run
from trn_validate.session import plan_text
from trn_validate.store import Store
from trn_validate.verdict import Outcome, Verdict

NODES = "stages.environment_nodes.node_names"
(STAGE,) = FAMILY.members(loaded())


def made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, lost: bool = False
) -> tuple[Run, Verdict]:
    """A run folder with the stage's verdict, as these nodes would have left it."""

    def handler(request: LaunchRequest) -> LaunchResult:
        there = NAMES[:1] if lost and request.name == "links" else NAMES
        return answering(request, there)

    plan = loaded()
    monkeypatch.setattr(NODES, lambda plan: NAMES)
    monkeypatch.setattr(redact, "own_names", lambda known: ("launcher.corp.example",))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run = Store(folder / "reports").create(plan.target, plan.path, plan_text(plan), nodes=2)
    run.redactor([name] for name in NAMES)
    executor = Executor(plan=plan, run=run, launcher=FakeLauncher(handler), choice=NO_SIGNS)
    executor.execute(STAGE, Inputs({}, {}), ())
    verdict = run.read(STAGE.id)
    assert verdict is not None
    return run, verdict


def again(run: Run, verdict: Verdict, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """What the folder alone gives: whoever asks for an allocation now gets none."""

    def nowhere(plan: Plan) -> NoReturn:
        raise AssertionError("the nodes are asked for")

    monkeypatch.setattr(NODES, nowhere)
    recorded = RecordedRun(run.folder, run.name, folder / "scratch")
    return replay(STAGE, verdict, plan=loaded(), run=recorded, earlier={}, choice=NO_SIGNS)


@pytest.mark.parametrize("lost", [False, True])
def test_the_verdict_follows_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    run, verdict = made(tmp_path, monkeypatch, lost=lost)
    assert run.name.startswith("cpu.native.2nodes.")
    assert verdict.outcome is (Outcome.FAILED if lost else Outcome.PASSED)
    assert verdict.host.job == "slurm 7"
    replayed = again(run, verdict, tmp_path, monkeypatch)
    assert replayed.why_not == ""
    assert list(differing(verdict, replayed.fields)) == []
    assert (replayed.differing, replayed.unused) == ((), ())


def test_no_name_of_a_node_leaves_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = made(tmp_path, monkeypatch)
    texts = [path.read_text() for path in run.folder.rglob("*") if path.is_file()]
    told = [text for text in texts if any(f'"{name}"' in text for name in NAMES)]
    assert texts
    assert told == []


def other_node(run: Run) -> None:
    path = run.folder / "environment.nodes/1/observed.json"
    told = json.loads(path.read_bytes())
    told["seen"]["nodes"][1] = "node-9"
    path.write_text(json.dumps(told))


def slower_node(run: Run) -> None:
    path = run.folder / "environment.nodes/1/links/records/node-of-rank-1.json"
    probe = NodeProbe.model_validate_json(path.read_bytes())
    seconds = probe.work_seconds * 40
    path.write_text(probe.model_copy(update={"work_seconds": seconds}).model_dump_json())


def another_kernel(run: Run) -> None:
    path = run.folder / "environment.nodes/1/facts/records/facts-1.json"
    told: dict[str, Any] = json.loads(path.read_bytes())
    told["fingerprint"]["kernel"] = "another"
    path.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_node, "nodes that see the run folder"),
        (slower_node, "slowest node"),
        (another_kernel, "nodes that differ in kernel"),
    ],
)
def test_what_is_altered_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Run], None], said: str
) -> None:
    run, verdict = made(tmp_path, monkeypatch)
    change(run)
    replayed = again(run, verdict, tmp_path, monkeypatch)
    assert any(f"check {said!r}" in line for line in differing(verdict, replayed.fields))
