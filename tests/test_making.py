from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fake_training import (
    Defect,
    Rig,
    altered,
    bent,
    calm_host,
    drifted,
    forgotten,
    other_state,
    two_ladders_plan,
    unwritten,
    within,
)
from trn_validate.config import Plan
from trn_validate.control import noise_measures
from trn_validate.errors import MeasurementError
from trn_validate.ladder import resolve
from trn_validate.making import Made, made_names, make_reference
from trn_validate.parity import Noise
from trn_validate.records import Header, Step

LADDERS = [0, 1]


class Workshop:
    """Makes references of a plan of two ladders, as their first stages do."""

    def __init__(self, folder: Path) -> None:
        self.rig = Rig(folder, plan=two_ladders_plan(folder))
        self.said: list[str] = []

    def make(self, *defects: Defect, ladder: int = 0, plan: Plan | None = None) -> Made:
        """The reference of a ladder, whose launches have these defects."""
        plan = plan or self.rig.plan
        rung = resolve(plan.ladders[ladder])[0]
        stage = ("baseline.eager", "parallelism.full_fsdp")[ladder]
        self.said.clear()
        self.rig.spoil(*defects)
        try:
            context = replace(self.rig.context(stage), plan=plan, say=self.said.append)
            return make_reference(context, rung)
        finally:
            self.rig.spoil()

    def failing(self, *defects: Defect, ladder: int = 0) -> list[str]:
        """Names of the checks that say no."""
        plan = self.rig.plan
        checks = self.make(*defects, ladder=ladder).checks(plan)
        assert tuple(check.name for check in checks) == made_names(plan)
        return [check.name for check in checks if not check.passed]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        yield Workshop(tmp_path_factory.mktemp("making"))


def neuron(plan: Plan) -> Plan:
    """The same plan for an accelerator."""
    device = {"device": "neuron", "process_group": "neuron", "devices": 1}
    profile = plan.profile.model_copy(update=device)
    return plan.model_copy(update={"profile": profile})


@pytest.mark.parametrize("ladder", LADDERS)
def test_a_reference_is_made_with_all_that_judges_it(workshop: Workshop, ladder: int) -> None:
    assert workshop.failing(ladder=ladder) == []
    made = workshop.make(ladder=ladder)
    names = [trial.spec.name for trial in (made.reference, made.rerun, made.control)]
    assert names == ["reference", "rerun", "control"]
    assert (made.seed / ".metadata").is_file()
    assert made.judged


def test_only_the_control_starts_from_moved_weights_and_the_rerun_alone_keeps_no_start(
    workshop: Workshop,
) -> None:
    made = workshop.make()
    trials = (made.reference, made.rerun, made.control)
    assert [trial.spec.perturb for trial in trials] == [0, 0, 1]
    assert [trial.spec.keep_start for trial in trials] == [True, False, True]
    assert [trial.spec.count_communication for trial in trials] == [True, False, False]
    assert {trial.spec.capture for trial in trials} == {"full"}
    assert {trial.spec.checkpoint.load_path for trial in trials} == {str(made.seed)}


def test_one_process_runs_its_repetitions_together_and_several_processes_do_not(
    workshop: Workshop,
) -> None:
    workshop.make()
    assert workshop.said == [
        "launching seed (one process)",
        "launching reference (one process)",
        "launching rerun (one process), control (one process)",
    ]
    workshop.make(ladder=1)
    assert workshop.said == [
        "launching seed (one process)",
        "launching reference (dp_shard2)",
        "launching rerun (dp_shard2)",
        "launching control (dp_shard2)",
    ]


@pytest.mark.parametrize(
    ("name", "defect", "check"),
    [
        ("reference", altered(Header, comm_backend="mpi"), "reference: communication backend"),
        ("rerun", other_state("optimizer", "end"), "rerun: state after the last step"),
        ("control", altered(Step, step=2, rows="0" * 32), "control: steps with other rows"),
        (
            "control",
            bent("gradient", lambda a: a * 1.001),
            "control: noise of the gradient of step 1",
        ),
    ],
)
def test_each_of_the_runs_is_judged(
    workshop: Workshop, name: str, defect: Defect, check: str
) -> None:
    assert workshop.failing(within(name, defect)) == [check]


@pytest.mark.parametrize("name", ["reference", "rerun", "control"])
def test_ranks_whose_copies_drift_apart_fail_each_of_the_runs(
    workshop: Workshop, name: str
) -> None:
    apart = within(name, drifted(1, "end", "norm.weight"))
    assert workshop.failing(apart, ladder=1) == [f"{name}: replicas agree"]


def test_a_loader_that_is_stuck_on_one_batch_is_seen_though_all_runs_agree(
    workshop: Workshop,
) -> None:
    for ladder in LADDERS:
        stuck = altered(Step, rows="0" * 32)
        assert workshop.failing(stuck, ladder=ladder) == [
            "reference: steps with rows of an earlier step"
        ]


OFF = (
    within("rerun", bent("gradient", lambda a: a * 1.00005)),
    within("rerun", altered(Step, step=3, loss=lambda old: old + 1e-5)),
)


def test_on_the_cpu_limits_follow_from_the_control_alone(workshop: Workshop) -> None:
    made = workshop.make(*OFF)
    assert made.noise == made.apart
    assert made.noise.loss_absolute == 0.0
    assert 0 < made.noise.gradient_relative < 1e-5
    assert workshop.failing(*OFF) == ["rerun: loss against the reference"]


def test_on_an_accelerator_the_larger_of_control_and_rerun_counts(workshop: Workshop) -> None:
    plan = neuron(workshop.rig.plan)
    made = workshop.make(*OFF, plan=plan)
    assert made.noise.gradient_relative == pytest.approx(5e-5, rel=0.01)
    assert made.noise.loss_absolute == pytest.approx(1e-5)
    assert made.noise.parameter_relative == made.apart.parameter_relative > 0
    assert made.noise.gradient_relative > made.apart.gradient_relative


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (altered(Step, step=3, loss=lambda old: old + 6e-5), "noise of the loss"),
        (bent("gradient", lambda a: a * 1.0002), "noise of the gradient of step 1"),
        (bent("end", lambda a: a + 0.01), "noise of the parameters after the last step"),
    ],
)
def test_an_accelerator_that_repeats_itself_too_badly_is_too_noisy_to_judge(
    workshop: Workshop, defect: Defect, check: str
) -> None:
    plan = neuron(workshop.rig.plan)
    made = workshop.make(within("rerun", defect), plan=plan)
    names = [one.name for one in made.checks(plan) if not one.passed]
    assert f"control: {check}" in names


def test_a_noisy_rerun_does_not_hide_a_control_without_effect(workshop: Workshop) -> None:
    plan = neuron(workshop.rig.plan)
    made = workshop.make(*OFF, plan=plan)
    still = replace(made, control=made.reference, apart=Noise(0.0, 0.0, 0.0, 0.0))
    names = {check.name for check in still.checks(plan) if not check.passed}
    assert {"control: weights that were not moved", "control: effect on the gradient"} <= names


@pytest.mark.parametrize(
    "defect",
    [
        within("control", altered(Step, step=3, loss=math.nan)),
        within("control", bent("gradient", lambda a: a * math.inf)),
        within("reference", bent("end", lambda a: a * math.nan)),
        within("control", forgotten("end", 0)),
    ],
)
def test_no_limit_follows_from_noise_that_is_no_number_and_it_does_not_pass(
    workshop: Workshop, defect: Defect
) -> None:
    plan = workshop.rig.plan
    made = workshop.make(defect)
    assert not made.judged
    assert any("noise" in check.name and not check.passed for check in made.checks(plan))
    assert not all(math.isfinite(value) for value in noise_measures(made.noise).values())


@pytest.mark.parametrize("name", ["reference", "control"])
@pytest.mark.parametrize("moment", ["gradient", "end"])
def test_a_run_that_left_no_file_could_not_be_measured(
    workshop: Workshop, name: str, moment: str
) -> None:
    with pytest.raises(MeasurementError, match=f"{name}/captures/{moment}.stage-0.safetensors"):
        workshop.make(within(name, unwritten(moment)))
