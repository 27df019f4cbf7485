from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from stages.environment_nodes import FAMILY
from tests.builders import ROOT
from tests.test_node_checks import facts, probe
from trn_validate import plan
from trn_validate.config import Plan
from trn_validate.launch import Cause, FakeLauncher, LaunchRequest, LaunchResult
from trn_validate.node_facts import Seen
from trn_validate.node_records import node_file
from trn_validate.stage import Context, Findings, Place
from trn_validate.store import Store


def loaded(nodes: int = 2) -> Plan:
    settings = ("launcher=slurm", f"nodes={nodes}")
    return plan.load(ROOT / "configs" / "cpu.yaml", settings=settings)


def test_a_plan_on_one_node_does_not_have_it() -> None:
    assert FAMILY.members(loaded(1)) == ()
    assert [stage.id for stage in FAMILY.members(loaded())] == ["environment.nodes"]


def test_it_starts_one_process_and_then_one_rank_on_each_node(tmp_path: Path) -> None:
    (stage,) = FAMILY.members(loaded())
    requests = stage.launches(Place(plan=loaded(), private=tmp_path, seed=tmp_path))
    assert [(request.name, request.nodes) for request in requests] == [("facts", 2), ("links", 2)]
    links = requests[1].argv
    assert links[links.index("--nproc-per-node") + 1] == "1"


def test_its_inputs_are_the_number_of_nodes_and_how_far_they_may_differ() -> None:
    (stage,) = FAMILY.members(loaded())
    assert stage.reads(loaded()) != stage.reads(loaded().model_copy(update={"nodes": 4}))


NAMES = ("trna", "trnb")


def answering(request: LaunchRequest, nodes: tuple[str, ...]) -> LaunchResult:
    """What these nodes would leave and say; one that is missing is lost."""
    records = request.folder / "records"
    records.mkdir()
    for position, name in enumerate(nodes):
        if request.name == "facts":
            seen = Seen(node=name, nodes=NAMES)
            (records / f"facts-{position}.json").write_text(facts(name).model_dump_json())
            (records / f"seen-{position}.json").write_text(seen.model_dump_json())
        else:
            links = probe(position).links[: 1 - position]
            one = probe(position, device="cpu", backend="gloo", links=links)
            node_file(records, position).write_text(one.model_dump_json())
    lost = [name for name in NAMES if name not in nodes]
    return LaunchResult(
        name=request.name,
        argv=request.argv,
        cause=Cause.NODE if lost else Cause.COMPLETED,
        exit_status=None if lost else 0,
        seconds=1.0,
        what=f"no answer from {lost[0]}" if lost else "",
    )


def run_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **nodes: tuple[str, ...]
) -> tuple[Findings, FakeLauncher]:
    """What the stage finds, where ``nodes`` are those that answer each launch."""
    monkeypatch.setattr("stages.environment_nodes.node_names", lambda plan: NAMES)
    launcher = FakeLauncher(lambda request: answering(request, nodes.get(request.name, NAMES)))
    run = Store(tmp_path).create("cpu", "native", "", nodes=2)
    context = Context(
        plan=loaded(),
        stage="environment.nodes",
        run=run,
        attempt=run.new_attempt("environment.nodes"),
        launcher=launcher,
        choice=cast(Any, None),
        earlier={},
        say=lambda text: None,
    )
    (stage,) = FAMILY.members(loaded())
    return stage.run(context), launcher


def test_nodes_in_order_leave_every_check_that_is_owed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings, launcher = run_with(tmp_path, monkeypatch)
    assert [check.name for check in findings.checks] == list(findings.expects)
    assert all(check.passed for check in findings.checks)
    assert (findings.problem, findings.device) == (None, "cpu")
    assert {request.nodes for request in launcher.requests} == {2}


def test_a_node_that_is_lost_is_named_and_nothing_more_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings, launcher = run_with(tmp_path, monkeypatch, facts=("trna",))
    assert [request.name for request in launcher.requests] == ["facts"]
    assert findings.problem is not None
    assert (findings.problem.cause, findings.problem.what) == ("node", "facts: no answer from trnb")
    assert [check.detail for check in findings.checks if not check.passed] == [
        "not trnb",
        "not trnb",
    ]


def test_a_node_that_does_not_come_to_the_rendezvous_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings, _ = run_with(tmp_path, monkeypatch, links=("trna",))
    failed = {check.name: check.detail for check in findings.checks if not check.passed}
    assert failed["nodes at the rendezvous"] == "not trnb"
    assert findings.problem is not None
    assert findings.problem.what == "links: no answer from trnb"
