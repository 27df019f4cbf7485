from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import load_plan
from tests.builders import verdict as a_verdict
from tests.fake_training import (
    Launch,
    Rig,
    Stub,
    altered,
    calm_host,
    cpu_plan,
    ends,
    holding,
    ladder_plan,
    not_holding,
    raises,
    raw_ladder_plan,
    tree,
    two_ladders_plan,
    within,
)
from trn_validate.errors import EvidenceError, FolderError, Interrupted, UsageError, exit_status
from trn_validate.freshness import Freshness, Inputs, State
from trn_validate.gate import (
    ABSENT,
    ERROR,
    FAILED,
    PASSED,
    STALE,
    Standing,
    first_closed,
    require_open,
    stage_status,
)
from trn_validate.gate import exit_status as status_of
from trn_validate.launch import Cause
from trn_validate.records import Step
from trn_validate.run import Run
from trn_validate.stage import Context, Findings, Unmeasured
from trn_validate.verdict import Outcome, Problem, Verdict

Act = Callable[[Context], Findings]
ONE, TWO, THREE = "stub.one", "stub.two", "stub.three"
EAGER, CHECKPOINT = "baseline.eager", "baseline.checkpoint"
FSDP, TP = "parallelism.fsdp", "parallelism.tp"
COMPILE, COMPILED = "kernels.compile", ["compiled-baseline", "compiled-tp"]
NKI, KERNELS = (
    "kernels.nki",
    [
        *("ops-rmsnorm", "ops-swiglu", "ops-expert_mlp", "kernels", "kernels-compiled"),
        *("experts-plain", "control", "experts"),
    ],
)


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    calm_host(monkeypatch)


def unsupported(context: Context) -> Findings:
    return Findings(expects=(), unsupported="the vendor says so")


def broken(context: Context) -> Findings:
    raise Unmeasured(Problem(cause="hang", what="it hangs"))


def absent(context: Context) -> Findings:
    findings = not_holding(context)
    findings.problem = Problem(cause="device_absent", what="no device")
    return findings


def stubs(folder: Path, *acts: Act, **plan: Any) -> tuple[Rig, list[Stub]]:
    """A run of stages that act so, named one, two, three."""
    made = [
        Stub(name, act, depends=name) for name, act in zip((ONE, TWO, THREE), acts, strict=False)
    ]
    changed = ladder_plan(folder).model_copy(update=plan)
    return Rig(folder, plan=changed, stages=made), made


def ran(made: list[Stub]) -> list[int]:
    return [stub.ran for stub in made]


# The line


def test_the_whole_cpu_plan_passes_end_to_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path, plan=cpu_plan())
    assert rig.walk() == PASSED
    assert set(rig.outcomes().values()) == {"passed"}
    assert list(rig.outcomes())[:5] == [
        "environment.device",
        "environment.imports",
        "environment.collectives",
        EAGER,
        CHECKPOINT,
    ]
    assert all(not rig.verdict(stage).missing for stage in rig.outcomes())


def test_stages_run_in_order_and_each_names_all_before_it(tmp_path: Path) -> None:
    order: list[str] = []

    def act(context: Context) -> Findings:
        order.append(context.stage)
        assert list(context.earlier) == order[:-1]
        return holding(context)

    rig, _ = stubs(tmp_path, act, act, act)
    assert rig.walk() == PASSED
    assert order == [ONE, TWO, THREE]
    assert [list(rig.verdict(name).builds_on) for name in order] == [[], [ONE], [ONE, TWO]]


@pytest.mark.parametrize(
    ("act", "status", "outcome"),
    [
        (holding, PASSED, "passed"),
        (not_holding, FAILED, "failed"),
        (unsupported, FAILED, "unsupported"),
        (absent, ABSENT, "failed"),
        (broken, ERROR, "error"),
        (lambda context: Findings(expects=()), ERROR, "error"),
        (lambda context: 1 / 0, ERROR, "error"),
    ],
)
def test_the_exit_status_is_that_of_the_design_for_each_outcome(
    tmp_path: Path, act: Act, status: int, outcome: str
) -> None:
    rig, _ = stubs(tmp_path, act)
    assert rig.walk() == status
    assert rig.outcomes() == {ONE: outcome}


def test_every_later_stage_is_blocked_by_the_first_that_closed_the_gate(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, not_holding, holding, holding)
    assert rig.walk() == FAILED
    assert ran(made) == [1, 0, 0]
    for name in (TWO, THREE):
        assert rig.verdict(name).outcome is Outcome.BLOCKED
        assert rig.verdict(name).blocked_by == ONE
        assert rig.verdict(name).rerun.endswith(f"--only {ONE}")


def test_the_first_stage_that_does_not_open_decides_the_status(tmp_path: Path) -> None:
    rig, _ = stubs(tmp_path, broken, not_holding)
    assert rig.walk() == ERROR


def test_unsupported_opens_the_gate_only_if_it_is_accepted_by_name(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, unsupported, holding, accept_unsupported=(TWO,))
    assert rig.walk() == FAILED
    assert rig.verdict(TWO).blocked_by == ONE
    rig.plan = rig.plan.model_copy(update={"accept_unsupported": (ONE,)})
    assert rig.walk() == PASSED
    assert ran(made) == [1, 1]
    assert rig.outcomes() == {ONE: "unsupported", TWO: "passed"}


def test_a_stage_that_was_blocked_runs_once_the_gate_is_open(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, not_holding, holding)
    rig.walk()
    made[0].act = holding
    assert rig.walk() == PASSED
    assert ran(made) == [2, 1]


# Reuse


def test_fresh_verdicts_are_kept_and_nothing_is_launched_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    launched, before = len(rig.launched()), tree(rig.run.folder)
    assert rig.walk() == PASSED
    assert len(rig.launched()) == launched
    assert tree(rig.run.folder) == before


def test_a_stage_that_failed_is_run_again(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, not_holding)
    rig.walk()
    assert rig.walk() == FAILED
    assert ran(made) == [1, 2]


def test_force_runs_also_what_is_fresh_and_ignores_no_gate(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, not_holding, holding)
    rig.walk()
    assert rig.walk(force=True) == FAILED
    assert ran(made) == [2, 2, 0]


def test_from_reruns_a_stage_and_all_after_it_fresh_or_not(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, holding, holding)
    rig.walk()
    assert rig.walk(start=TWO) == PASSED
    assert ran(made) == [1, 2, 2]
    assert rig.walk(start=ONE) == PASSED
    assert ran(made) == [2, 3, 3]


def test_until_stops_after_a_stage_and_exits_as_the_stages_so_far(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, holding, not_holding)
    assert rig.walk(until=TWO) == PASSED
    assert ran(made) == [1, 1, 0]
    assert status_of(rig.gate.standings()) == STALE
    assert rig.walk(start=TWO, until=TWO) == PASSED
    assert ran(made) == [1, 2, 0]
    assert rig.walk(until=THREE) == FAILED
    assert ran(made) == [1, 2, 1]


def test_until_exits_as_a_stage_that_said_no_before_it(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, not_holding, holding, holding)
    assert rig.walk(until=TWO) == FAILED
    assert ran(made) == [1, 0, 0]
    assert list(rig.outcomes().values()) == ["failed", "blocked", "-"]


def test_a_rerun_in_the_middle_makes_what_follows_stale_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig, made = stubs(tmp_path, holding, holding, holding)
    rig.walk()
    capsys.readouterr()
    assert rig.walk(only=TWO) == PASSED
    told = capsys.readouterr().err
    assert f"stale now: {THREE} (changed: verdict of {TWO})" in told
    assert f"stale now: {ONE}" not in told
    assert status_of(rig.gate.standings()) == STALE
    assert rig.walk() == PASSED
    assert ran(made) == [1, 2, 2]


def test_only_exits_with_the_status_of_its_own_stage(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, holding, broken)
    rig.walk()
    assert rig.walk(only=ONE) == PASSED
    made[0].act = not_holding
    assert rig.walk(only=ONE) == FAILED


@pytest.mark.parametrize("selection", [{"only": THREE}, {"start": THREE}])
def test_a_stage_behind_a_closed_gate_is_refused_and_nothing_is_written(
    tmp_path: Path, selection: dict[str, str]
) -> None:
    rig, made = stubs(tmp_path, holding, not_holding, holding)
    rig.walk()
    before = tree(tmp_path)
    rig.plan = rig.plan.model_copy(update={"settings": ("a=b",)})
    message = rf"{THREE} stands behind {TWO}.*failed, fresh"
    with pytest.raises(EvidenceError, match=message) as caught:
        rig.walk(**selection)
    assert exit_status(caught.value) == STALE
    assert f"run --only {TWO}" in caught.value.todo
    assert tree(tmp_path) == before
    assert ran(made) == [1, 1, 0]


def test_force_does_not_open_the_gate(tmp_path: Path) -> None:
    rig, _ = stubs(tmp_path, not_holding, holding)
    rig.walk()
    with pytest.raises(EvidenceError, match=f"stands behind {ONE}"):
        rig.walk(only=TWO, force=True)


def test_a_stage_behind_a_stale_one_is_refused(tmp_path: Path) -> None:
    rig, _ = stubs(tmp_path, holding, holding, holding)
    rig.walk()
    rig.walk(only=ONE)
    with pytest.raises(EvidenceError, match=rf"stands behind {TWO}.*stale"):
        rig.walk(only=THREE)


def test_a_stage_with_nothing_before_it_may_always_run(tmp_path: Path) -> None:
    rig, _ = stubs(tmp_path, holding)
    assert rig.walk(only=ONE) == PASSED
    require_open((), ONE)


def test_a_stage_that_the_plan_does_not_have_is_refused_with_the_nearest(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(UsageError, match=r"Did you mean baseline\.eager\?"):
        rig.walk(only="baseline.eagre")
    with pytest.raises(UsageError, match=r"It has: environment\.device, environment\.imports"):
        rig.walk(start="xyzzy")


# What makes a verdict stale


def states(rig: Rig) -> dict[str, str]:
    """The stages that are stale, with the reason."""
    return {
        s.stage.id: s.freshness.reason
        for s in rig.gate.standings()
        if s.freshness.state is State.STALE
    }


def test_a_changed_value_makes_only_what_reads_it_stale(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    rig.plan = ladder_plan(tmp_path, "paths.native.ladders.0.rungs.tp.tp=4")
    # The widest rung is larger: environment.device asks memory for it, and its ranks communicate.
    assert states(rig) == {
        "environment.device": "changed: plan",
        "environment.collectives": "changed: plan",
        TP: "changed: plan",
        COMPILE: "changed: plan",
        NKI: "changed: plan",
    }
    rig.plan = ladder_plan(tmp_path, "limits.loss_fall=0.03")
    assert list(states(rig)) == [EAGER, CHECKPOINT, FSDP, TP, COMPILE, NKI]
    rig.plan = ladder_plan(tmp_path, "accept_unsupported=[kernels.nki]")
    assert states(rig) == {}


def test_a_rung_that_is_added_leaves_the_others_fresh(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    raw = raw_ladder_plan()
    raw["paths"]["native"]["ladders"][0]["rungs"].append(
        {"name": "pp", "extends": "baseline", "pp": 2}
    )
    rig.plan = load_plan(tmp_path, raw=raw)
    assert states(rig) == {}
    launched = len(rig.launched())
    assert rig.walk() == PASSED
    # What is compiled builds on every rung before it.
    assert rig.launched()[launched:] == ["pp", *COMPILED, *KERNELS]


def test_changed_code_makes_everything_stale(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    rig.code = "2" * 64
    assert set(states(rig)) == set(rig.outcomes())
    assert set(states(rig).values()) == {"changed: code"}
    assert status_of(rig.gate.standings()) == STALE


def test_a_changed_environment_makes_everything_stale(tmp_path: Path) -> None:
    rig, _ = stubs(tmp_path, holding, holding)
    rig.walk()
    rig.environment = {"os": "another machine"}
    assert states(rig) == {ONE: "changed: environment", TWO: "changed: environment"}


def test_what_a_plan_names_from_outside_takes_part(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, holding)
    made[1].outside = {"torchtitan.models.qwen3": "digest"}
    rig.walk()
    made[1].outside = {"torchtitan.models.qwen3": "another"}
    assert states(rig) == {TWO: "changed: external torchtitan.models.qwen3"}


@pytest.mark.parametrize("how", ["edited", "gone"])
def test_an_artifact_that_is_no_more_what_the_verdict_says_makes_it_stale(
    tmp_path: Path, how: str
) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    name = f"{FSDP}/1/fsdp/records/rank-1.jsonl"
    path = rig.run.folder / name
    if how == "edited":
        path.write_text(path.read_text().replace('"tokens":512', '"tokens":513'))
    else:
        path.unlink()
    assert states(rig) == {FSDP: f"missing or changed: artifact {name}"}
    launched = len(rig.launched())
    assert rig.walk() == PASSED
    assert rig.launched()[launched:] == ["fsdp", "tp", *COMPILED, *KERNELS]


def test_an_edited_seed_is_made_again_and_all_that_started_from_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    seed = rig.run.folder / f"{EAGER}/1/seed/__0_0.distcp"
    seed.write_bytes(seed.read_bytes() + b" ")
    launched = len(rig.launched())
    assert rig.walk() == PASSED
    assert rig.launched()[launched] == "seed"
    assert rig.verdict(TP).attempt == 2


def test_a_verdict_whose_file_was_edited_makes_what_builds_on_it_stale(tmp_path: Path) -> None:
    rig, _ = stubs(tmp_path, holding, holding)
    rig.walk()
    path = rig.run.verdict_path(ONE)
    path.write_text(path.read_text().replace('"seconds": 0', '"seconds": 1', 1))
    assert states(rig) == {TWO: f"changed: verdict of {ONE}"}


# Verdicts that cannot be read


def unreadable(rig: Rig, name: str) -> str:
    rig.run.verdict_path(name).write_text("{ torn")
    return "not JSON"


def foreign(rig: Rig, name: str) -> str:
    path = rig.run.verdict_path(name)
    path.write_text(path.read_text().replace(rig.run.name, "cpu.native.20200101T000000Z"))
    return "this is the verdict of .* in the run cpu.native.20200101T000000Z"


def lying(rig: Rig, name: str) -> str:
    path = rig.run.verdict_path(name)
    stated = json.loads(path.read_text())
    stated["checks"][0]["measured"] = 5.0
    path.write_text(json.dumps(stated))
    return "says other than its numbers do"


WRONG = pytest.mark.parametrize("wrong", [unreadable, foreign, lying])


@WRONG
def test_a_wrong_verdict_ends_a_run_with_5_before_anything_runs(
    tmp_path: Path, wrong: Callable[[Rig, str], str]
) -> None:
    rig, made = stubs(tmp_path, not_holding, holding)
    rig.walk()
    made[0].act = holding
    rig.walk()
    message = wrong(rig, TWO)
    with pytest.raises(EvidenceError, match=message) as caught:
        rig.walk()
    assert exit_status(caught.value) == STALE
    assert ran(made) == [2, 1]


@WRONG
@pytest.mark.parametrize("selection", [{"only": TWO}, {"start": TWO}, {"force": True}])
def test_the_rerun_that_the_message_advises_replaces_a_wrong_verdict_and_keeps_it(
    tmp_path: Path, wrong: Callable[[Rig, str], str], selection: dict[str, Any]
) -> None:
    rig, _ = stubs(tmp_path, holding, holding)
    rig.walk()
    wrong(rig, TWO)
    text = rig.run.verdict_path(TWO).read_text()
    assert rig.walk(**selection) == PASSED
    assert rig.verdict(TWO).outcome is Outcome.PASSED
    kept = list((rig.run.folder / TWO).glob("*/unreadable.json"))
    assert [path.read_text() for path in kept] == [text]


def test_a_wrong_verdict_before_the_stage_keeps_the_gate_shut(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, holding)
    rig.walk()
    unreadable(rig, ONE)
    with pytest.raises(EvidenceError):
        rig.walk(only=TWO)
    assert ran(made) == [1, 1]


def test_a_wrong_verdict_of_a_stage_that_is_blocked_now_is_replaced(tmp_path: Path) -> None:
    rig, made = stubs(tmp_path, holding, holding)
    rig.walk()
    unreadable(rig, TWO)
    made[0].act = not_holding
    assert rig.walk(start=ONE) == FAILED
    assert rig.verdict(TWO).blocked_by == ONE


# What goes wrong in the middle


def test_a_launch_that_crashed_is_an_error_with_a_place_to_look(tmp_path: Path) -> None:
    rig = Rig(tmp_path, within("rerun", ends(Cause.CRASH, "rank 0: ValueError: no")))
    assert rig.walk() == ERROR
    problem = rig.verdict(EAGER).problem
    assert problem is not None
    assert problem.log == f"{EAGER}/1/rerun/output.log"
    assert rig.verdict(TP).blocked_by == EAGER


def test_an_interrupt_in_a_stage_is_on_record_and_the_run_can_be_continued(tmp_path: Path) -> None:
    rig = Rig(tmp_path, within("save", raises(Interrupted(signal.SIGINT))))
    with pytest.raises(Interrupted):
        rig.walk()
    verdict = rig.verdict(CHECKPOINT)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert verdict.problem.cause == "interrupted"
    assert rig.outcomes()[FSDP] == "-"
    assert status_of(rig.gate.standings()) == ERROR
    launched = len(rig.launched())
    rig.spoil()
    assert rig.walk() == PASSED
    assert rig.launched()[launched] == "save"


def test_an_interrupted_rerun_does_not_leave_the_pass_of_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    rig.spoil(within("fsdp", raises(Interrupted(signal.SIGTERM))))
    with pytest.raises(Interrupted):
        rig.walk(only=FSDP)
    assert rig.verdict(FSDP).outcome is Outcome.ERROR
    assert rig.verdict(FSDP).attempt == 2


def test_a_disk_that_fills_in_a_launch_is_an_error(tmp_path: Path) -> None:
    rig = Rig(tmp_path, within("reference", raises(FolderError("no space is left"))))
    assert rig.walk() == ERROR
    problem = rig.verdict(EAGER).problem
    assert problem is not None
    assert problem.cause == "no_space"


def test_a_disk_that_fills_before_a_stage_starts_is_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Run, stage: str) -> None:
        raise FolderError("no space is left")

    rig, made = stubs(tmp_path, holding)
    monkeypatch.setattr(Run, "new_attempt", full)
    with pytest.raises(FolderError) as caught:
        rig.walk()
    assert exit_status(caught.value) == 2
    assert ran(made) == [0]


def test_one_wrong_step_of_one_layout_fails_there_and_nowhere_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path, within("tp", altered(Step, step=5, loss=lambda old: old + 1e-4)))
    assert rig.walk() == FAILED
    assert [name for name, outcome in rig.outcomes().items() if outcome != "passed"] == [
        TP,
        COMPILE,
        NKI,
    ]


def test_two_ladders_climb_one_after_the_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path, plan=two_ladders_plan(tmp_path))
    assert rig.walk() == PASSED
    assert list(rig.outcomes())[-6:] == [
        FSDP,
        TP,
        "parallelism.full_fsdp",
        "parallelism.full_tp",
        COMPILE,
        NKI,
    ]

    def ladder_of(launch: Launch) -> bool:
        return "full" in str(launch.request.folder)

    def second_only(launch: Launch) -> None:
        if ladder_of(launch) and launch.name == "reference":
            ends(Cause.OUT_OF_MEMORY)(launch)

    rig.spoil(second_only)
    assert rig.walk(start="parallelism.full_fsdp") == ERROR
    assert rig.verdict("parallelism.full_tp").blocked_by == "parallelism.full_fsdp"
    assert rig.verdict(TP).outcome is Outcome.PASSED


# The arithmetic of standings


def standing(
    verdict: Verdict | None, state: State = State.FRESH, *, opens: bool = False
) -> Standing:
    stub = Stub(ONE, holding)
    return Standing(stub, verdict, None, Inputs({}, {}), Freshness(state), opens)


def test_the_status_of_a_standing() -> None:
    passed = a_verdict()
    blocked = a_verdict(checks=(), blocked_by=ONE)
    assert stage_status(standing(passed, opens=True)) == PASSED
    assert stage_status(standing(passed, State.STALE)) == STALE
    assert stage_status(standing(None, State.ABSENT)) == STALE
    assert stage_status(standing(blocked)) == ERROR


def test_a_run_without_stages_has_not_passed() -> None:
    assert status_of(()) == STALE
    assert first_closed(()) is None
