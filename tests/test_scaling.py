from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import ROOT
from trn_validate import plan
from trn_validate.errors import MeasurementError
from trn_validate.launch import Cause, FakeLauncher, LaunchRequest, LaunchResult
from trn_validate.scaling import Case, ask, cases, judge

TWO = ("launcher=slurm", "nodes=2")


def large() -> tuple[Case, ...]:
    found = plan.load(ROOT / "configs" / "trn2.48xlarge.yaml", settings=TWO)
    return tuple(cases(found))


def answer(**changes: object) -> dict[str, object]:
    near = {"tp": [0, 1, 2, 3]}
    return {"neighbours": {"0": near}, "parameters": 8 * 10**9, **changes}


def test_a_wider_layout_keeps_the_share_of_a_node_and_of_a_rank() -> None:
    every = large()
    assert [case.plan.nodes for case in every if case.rung.name == "8b_fsdp32"] == [
        *(2, 4, 8, 16, 32, 64)
    ]
    for case in every:
        share = case.rung.degrees.world_size // case.plan.nodes
        assert share == (64 if case.rung.degrees.tp == 4 else 16)
        assert case.rung.local_batch_size == 1
        assert case.spec.nodes == case.plan.nodes


def test_a_layout_that_is_built_as_it_is_meant_holds() -> None:
    row = judge(large()[-1], answer())
    assert row.problems == ()
    assert row.ranks == 4096
    assert row.gib_per_rank == pytest.approx(8e9 * 16 / 4096 / 2**30)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"refused": "ValueError: no"}, "torchtitan refuses it: ValueError: no"),
        ({"parameters": 10**13}, "GiB of state, but a core has 24.0"),
        (
            {"neighbours": {"0": {"tp": [0, 64]}}},
            "tp of rank 0 crosses nodes: ranks 0, 64",
        ),
    ],
)
def test_a_layout_that_does_not_hold_is_told(changes: dict[str, object], problem: str) -> None:
    (found,) = judge(large()[-1], answer(**changes)).problems
    assert problem in found


def test_the_rules_of_the_plan_are_asked_too() -> None:
    case = large()[0]
    narrow = case.plan.profile.model_copy(update={"cores": 8})
    small = Case(plan=case.plan.model_copy(update={"profile": narrow}), rung=case.rung)
    assert "the profile has 8 cores" in judge(small, answer()).problems[0]


def launcher(text: str | None) -> FakeLauncher:
    def handle(request: LaunchRequest) -> LaunchResult:
        if text is not None:
            Path(request.argv[-1]).write_text(text)
        return LaunchResult(
            name="scale", argv=request.argv, cause=Cause.CRASH, exit_status=1, seconds=1, what="why"
        )

    return FakeLauncher(handle)


def test_the_answers_of_one_process_are_for_all_cases(tmp_path: Path) -> None:
    told = launcher(json.dumps([answer()] * 12))
    assert len(ask(large(), tmp_path, told)) == 12
    assert len(told.requests) == 1
    assert len(json.loads((tmp_path / "cases.json").read_text())) == 12


def test_a_process_without_answers_is_an_error_and_no_pass(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="torchtitan gave no answer: why"):
        ask(large(), tmp_path, launcher(None))
