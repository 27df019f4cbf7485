"""What environment.ops says of operations that are right, wrong, refused, or that do not come back.

The stage is written against the device of the plan: here that is the CPU, against itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages import stages_of
from stages.environment_ops import FAMILY, MODULE, OpsStage
from tests.builders import ROOT
from tests.fake_training import Defect, Launch, Rig, calm_host, cpu_plan, ends, failing, within
from tests.neuron.machine import Machine
from tests.neuron.test_watch import counts
from trn_validate import plan as plans
from trn_validate.launch import Cause
from trn_validate.operation import OPERATIONS
from trn_validate.verdict import Capability, Outcome, Verdict

STAGE = "environment.ops"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        yield Rig(tmp_path, plan=cpu_plan(), stages=[OpsStage()])


def answers(**changes: Any) -> Defect:
    def apply(launch: Launch) -> None:
        assert launch.answer is not None
        launch.answer |= changes

    return apply


def compared(**changes: Any) -> Defect:
    """Something else of the first tensor that was compared."""

    def apply(launch: Launch) -> None:
        assert launch.answer is not None
        launch.answer["compared"][0] |= changes

    return apply


def silent(launch: Launch) -> None:
    launch.answer = None


def row(verdict: Verdict, name: str) -> Capability:
    (found,) = (one for one in verdict.capabilities if one.operation == name)
    return found


def test_the_cpu_has_no_such_stage_and_every_accelerator_has_one() -> None:
    assert FAMILY.members(cpu_plan()) == ()
    for name in ("trn2.3xlarge", "trn2.48xlarge"):
        stages = [stage.id for stage in stages_of(plans.load(ROOT / f"configs/{name}.yaml"))]
        assert stages.index("environment.collectives") + 1 == stages.index(STAGE)
        assert stages.index(STAGE) + 1 == stages.index("baseline.eager")


def test_right_operations_pass_each_in_a_process_of_its_own(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert verdict.outcome is Outcome.PASSED
    assert [command.name for command in verdict.commands] == list(OPERATIONS)
    assert all(MODULE in command.argv for command in verdict.commands)
    assert [one.operation for one in verdict.capabilities] == list(OPERATIONS)
    assert {one.state for one in verdict.capabilities} == {"right"}
    assert (verdict.device, verdict.versions["torch"]) == ("cpu", "2.14.1")
    assert {c.unit for c in verdict.checks if c.name.endswith("error")} == {"errors of the CPU"}


@pytest.mark.parametrize(
    ("defect", "check", "state"),
    [
        (compared(largest=5.5), "matmul: largest error", "wrong"),
        (compared(largest="NaN"), "matmul: largest error", "wrong"),
        (compared(norm=3.1), "matmul: error norm", "wrong"),
        (compared(norm="Infinity"), "matmul: error norm", "wrong"),
        (compared(differing=1), "matmul: elements that differ", "wrong"),
        (compared(degenerate="zero"), "matmul: degenerate results", "wrong"),
        (answers(device="cpu and neuron"), "matmul: device", "wrong"),
        (answers(compared=[]), "matmul: tensors compared", "wrong"),
        (answers(fallbacks=["aten::mm"]), "matmul: fallbacks to the CPU", "wrong"),
        (answers(refused="RuntimeError: NCC_EVRF029"), "matmul: errors raised", "refused"),
    ],
)
def test_a_wrong_operation_fails_by_its_own_check_and_is_in_the_table(
    rig: Rig, defect: Defect, check: str, state: str
) -> None:
    verdict = rig.rerun(STAGE, within("matmul", defect))
    assert failing(verdict) == [check]
    found = row(verdict, "matmul")
    assert (found.state, found.detail.startswith(check)) == (state, True)
    assert row(verdict, "softmax").state == "right"
    assert verdict.problem is not None


@pytest.mark.parametrize(
    ("cause", "state"),
    [(Cause.HANG, "hung"), (Cause.TIMEOUT, "hung"), (Cause.CRASH, "crashed")],
)
def test_a_process_that_leaves_no_answer_costs_only_its_operation(
    rig: Rig, cause: Cause, state: str
) -> None:
    verdict = rig.rerun(
        STAGE, within("topk", silent), within("topk", ends(cause, "ended by SIGSEGV"))
    )
    assert failing(verdict) == ["topk: ended"]
    assert row(verdict, "topk").state == state
    assert row(verdict, "adamw").state == "right", "what comes after it was asked"
    assert verdict.problem is not None
    assert verdict.problem.cause == cause.value
    assert "ended by SIGSEGV" in verdict.problem.what


def test_an_exit_status_of_0_without_an_answer_is_no_pass(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("gather", silent))
    assert failing(verdict) == ["gather: ended"]
    assert "gather: device" in verdict.missing


def test_an_answer_that_was_left_before_a_crash_counts(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("gather", ends(Cause.CRASH, "ended by SIGSEGV")))
    assert verdict.outcome is Outcome.PASSED


def test_where_nobody_can_be_asked_for_fallbacks_it_is_said_and_not_claimed(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, answers(asked=""))
    assert verdict.outcome is Outcome.PASSED
    assert "nobody could be asked" in verdict.facts["fallbacks"]
    assert not [c for c in verdict.checks if "fallbacks" in c.name]


def test_hooks_of_a_process_are_on_record(rig: Rig) -> None:
    assert rig.rerun(STAGE, answers(hooks=["tests:x"])).hooks == ("tests:x",)


def test_on_a_device_the_executions_have_to_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm_host(monkeypatch)
    machine = Machine(tmp_path / "small", kind="trn2.3xlarge").build()
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    rig = Rig(tmp_path, counts(machine), plan=plan, choice=machine.install())
    for stage in ("device", "imports", "collectives"):
        rig.walk(only=f"environment.{stage}")
    rig.walk(only=STAGE)
    found = rig.verdict(STAGE)
    assert (found.outcome, found.device) == (Outcome.PASSED, "neuron")
    assert found.execution is not None
    assert failing(rig.rerun(STAGE)) == ["executions on the device"]
