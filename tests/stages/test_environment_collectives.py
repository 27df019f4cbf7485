"""What environment.collectives says, and which rungs it lets run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.environment_collectives import FAMILY
from tests.builders import ladder_of, load_plan, raw_plan
from tests.fake_collectives import TRACE, Spoil, ends, headers, stuck
from tests.fake_training import (
    Defect,
    Launch,
    Rig,
    calm_host,
    cpu_plan,
    failing,
    probe,
    two_ladders_plan,
    within,
)
from tests.fake_training import ends as launch_ends
from trn_validate.config import Plan
from trn_validate.launch import Cause
from trn_validate.verdict import Capability, Outcome, Verdict

STAGE, FSDP, TP = "environment.collectives", "parallelism.fsdp", "parallelism.tp"
COMPILE = "kernels.compile"
NKI = "kernels.nki"
WRONG, STUCK = "operations with a wrong answer", "needed operations that hung or crashed"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        rig = Rig(tmp_path)
        rig.walk(only="environment.device")
        rig.walk(only="environment.imports")
        yield rig


def on_two(*spoils: Spoil) -> Defect:
    return within("ranks-2", probe(*spoils))


def capability(verdict: Verdict, name: str, world: int = 2) -> Capability:
    (found,) = (
        one for one in verdict.capabilities if (one.operation, one.processes) == (name, world)
    )
    return found


def test_right_answers_pass_with_a_row_for_every_operation(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.device == "cpu"
    assert [command.name for command in verdict.commands] == ["ranks-2", "ranks-4"]
    assert {one.state for one in verdict.capabilities} == {"right"}
    assert capability(verdict, "all_reduce float32").seconds == 0.01
    assert len({(c.operation, c.processes) for c in verdict.capabilities}) == len(
        verdict.capabilities
    )


def test_a_plan_of_one_process_has_no_such_stage(tmp_path: Path) -> None:
    assert FAMILY.members(ladder_of(tmp_path, [{"name": "baseline"}])) == ()


def test_a_wrong_value_fails_and_names_operation_and_rank(rig: Rig) -> None:
    spoil = ends("all_to_all int64", "wrong", "element 3 is 1, not 2; 1 of 96 differ", rank=1)
    verdict = rig.rerun(STAGE, on_two(spoil))
    assert failing(verdict) == [f"2 ranks: {WRONG}"]
    assert "all_to_all int64 wrong: rank 1: element 3 is 1" in verdict.failed_checks[0].detail
    assert capability(verdict, "all_to_all int64").state == "wrong"
    assert verdict.problem is not None


def test_what_gloo_is_known_to_get_wrong_fails_nothing_and_is_on_record(rig: Rig) -> None:
    spoil = ends("all_reduce float32 strided", "wrong", "element 48 is 0, not 4")
    verdict = rig.rerun(STAGE, on_two(spoil))
    assert verdict.outcome is Outcome.PASSED
    assert capability(verdict, "all_reduce float32 strided").state == "wrong"


def test_another_backend_that_gets_it_wrong_fails(rig: Rig) -> None:
    spoil = ends("all_reduce float32 strided", "wrong", "element 48 is 0, not 4")
    verdict = rig.rerun(STAGE, on_two(spoil, headers(backend="neuron")))
    assert f"2 ranks: {WRONG}" not in failing(verdict)
    assert "2 ranks: communication backend" in failing(verdict)


def test_tensors_on_another_device_fail(rig: Rig) -> None:
    assert failing(rig.rerun(STAGE, on_two(headers(device="meta")))) == ["2 ranks: device"]


def test_a_refusal_fails_nothing_and_closes_the_rungs_that_need_it(rig: Rig) -> None:
    text = "NotImplementedError: reduce_scatter"
    verdict = rig.rerun(STAGE, on_two(ends("reduce_scatter float32", "refused", text)))
    assert verdict.outcome is Outcome.PASSED
    assert capability(verdict, "reduce_scatter float32").detail == f"rank 0: {text}"
    assert rig.walk() == 1
    found = rig.verdict(FSDP)
    assert found.outcome is Outcome.UNSUPPORTED
    assert found.unsupported == (
        f"dp_shard2 needs reduce_scatter float32 on 2 processes; refused: rank 0: {text}"
    )
    assert "fsdp" not in rig.launched(), "it is told before the rung runs"
    assert rig.verdict(TP).outcome is Outcome.BLOCKED


def test_an_accepted_rung_lets_the_others_run_and_what_compiles_a_closed_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm_host(monkeypatch)
    plan = cpu_plan("accept_unsupported=[parallelism.tp]")
    refused = ends("all_gather float32 in groups of 2, 1 apart", "refused", "no such thing")
    rig = Rig(tmp_path, within("ranks-4", probe(refused)), plan=plan)
    assert rig.walk() == 1
    outcomes = rig.outcomes()
    assert outcomes[TP] == "unsupported"
    # It uses the same groups for its shards.
    assert outcomes["parallelism.hsdp"] == "unsupported"
    assert outcomes["parallelism.cp"] == "blocked"
    accepted = (TP, "parallelism.hsdp", "parallelism.cp", COMPILE, NKI)
    rig.plan = cpu_plan(f"accept_unsupported=[{', '.join(accepted)}]")
    assert rig.walk() == 0
    assert rig.outcomes()["parallelism.pp"] == "passed"
    assert str(rig.verdict(COMPILE).unsupported).startswith("parallelism.tp is unsupported: ")
    assert rig.outcomes()[NKI] == "unsupported"


def test_a_ladder_whose_reference_is_unsupported_is_so_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm_host(monkeypatch)
    rig = Rig(tmp_path, plan=two_ladders_plan(tmp_path))
    rig.plan = rig.plan.model_copy(
        update={"accept_unsupported": (FSDP, TP, "parallelism.full_fsdp")}
    )
    rig.spoil(on_two(ends("all_gather float32", "refused", "no such thing")))
    rig.walk()
    found = rig.verdict("parallelism.full_tp")
    assert found.outcome is Outcome.UNSUPPORTED
    assert str(found.unsupported).startswith("parallelism.full_fsdp is unsupported: ")


def experts(folder: Path) -> Plan:
    """Experts over two ranks, by the exchange that takes one tensor for all ranks."""
    raw = raw_plan()
    ladder = raw["paths"]["native"]["ladders"][0]
    ladder["model"] |= {"flavor": "debugmodel_moe", "layers": None}
    ladder["workload"] |= {"spmd_backend": "partial_dtensor"}
    ladder["rungs"] = [
        {"name": "baseline"},
        {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
        {"name": "ep", "extends": "fsdp", "ep": 2},
    ]
    return load_plan(folder, raw=raw)


@pytest.mark.parametrize(
    ("operation", "text", "closed"),
    [
        (
            "all_to_all float32 uneven",
            "RuntimeError: alltoall_base: Only even split sizes are supported. Got ...",
            True,
        ),
        ("all_gather_list float32 scalar", "IndexError: tuple index out of range", False),
    ],
)
def test_what_users_saw_refused_is_in_the_table_and_closes_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, text: str, closed: bool
) -> None:
    calm_host(monkeypatch)
    rig = Rig(tmp_path, on_two(ends(operation, "refused", text)), plan=experts(tmp_path))
    rig.walk()
    assert capability(rig.verdict(STAGE), operation).detail == f"rank 0: {text}"
    assert rig.verdict(FSDP).outcome is Outcome.PASSED
    found = rig.verdict("parallelism.ep")
    assert (found.outcome is Outcome.UNSUPPORTED) == closed
    assert (text in str(found.unsupported)) == closed


def timed_out(launch: Launch) -> None:
    """The ranks ended themselves at the time limit of an operation."""
    if launch.probed:
        launch.cause, launch.what = Cause.CRASH, "exit status 1"
        folder = launch.request.folder / "records"
        folder.mkdir(parents=True, exist_ok=True)
        for rank in launch.probed:
            (folder / f"rank-{rank}.trace.txt").write_text(TRACE)


def test_a_hang_is_named_with_its_rank_and_the_rest_is_asked_again(rig: Rig) -> None:
    hung = within("ranks-2", probe(stuck("all_gather float32", rank=1)))
    verdict = rig.rerun(STAGE, hung, within("ranks-2", timed_out))
    assert failing(verdict) == [f"2 ranks: {STUCK}"]
    found = capability(verdict, "all_gather float32")
    assert found.state == "hung"
    assert found.detail == "rank 1: had not issued it when its time was over"
    assert [command.name for command in verdict.commands] == [
        "ranks-2",
        "ranks-4",
        "ranks-2-again-1",
    ]
    assert {c.state for c in verdict.capabilities} == {"right", "hung"}


def test_a_crash_of_what_no_layout_needs_is_on_record_and_fails_nothing(rig: Rig) -> None:
    name = "all_to_all float32 uneven"
    verdict = rig.rerun(STAGE, on_two(stuck(name)), within("ranks-2", died))
    assert verdict.outcome is Outcome.PASSED
    assert capability(verdict, name).state == "crashed"


def died(launch: Launch) -> None:
    if launch.probed:
        launch.cause, launch.what = Cause.CRASH, "rank 0: ended by SIGSEGV"


def test_after_three_that_hang_the_rest_is_not_asked_and_that_is_owed(rig: Rig) -> None:
    spoils = (
        on_two(stuck("broadcast float32")),
        within("ranks-2-again-1", probe(stuck("all_reduce float32"))),
        within("ranks-2-again-2", probe(stuck("all_gather float32"))),
    )
    launches = ("ranks-2", "ranks-2-again-1", "ranks-2-again-2")
    verdict = rig.rerun(STAGE, *spoils, *(within(name, timed_out) for name in launches))
    assert failing(verdict) == ["2 ranks: operations with an answer", f"2 ranks: {STUCK}"]
    assert capability(verdict, "reduce_scatter float32").state == "unasked"
    assert len(verdict.commands) == 4


def test_nothing_right_is_no_pass(rig: Rig) -> None:
    def refuse_all(lines: object) -> None:
        assert isinstance(lines, dict)
        for rank, some in lines.items():
            lines[rank] = [
                line.model_copy(update={"phase": "refused", "what": "no"})
                if getattr(line, "phase", "") == "right"
                else line
                for line in some
            ]

    assert failing(rig.rerun(STAGE, on_two(refuse_all))) == ["2 ranks: operations that are right"]


def test_ranks_without_a_process_group_are_an_error_that_says_where_to_look(rig: Rig) -> None:
    verdict = rig.rerun(
        STAGE,
        within("ranks-2", lambda launch: launch.probed.clear()),
        within("ranks-2", launch_ends(Cause.PORT, "Address already in use")),
    )
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert verdict.problem.cause == "port"
    assert "Address already in use" in verdict.problem.what


def test_a_crash_after_every_answer_is_a_teardown_and_fails_nothing(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("ranks-2", died))
    assert verdict.outcome is Outcome.PASSED
    assert verdict.commands[0].cause == "teardown"


def test_hooks_of_the_ranks_are_on_record(rig: Rig) -> None:
    assert rig.rerun(STAGE, on_two(headers(hooks=("tests:x",)))).hooks == ("tests:x",)
