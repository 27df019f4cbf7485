from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.baseline_eager import ACCUMULATION, accumulation_spec, first_rung
from tests.fake_captures import Keeps
from tests.fake_training import (
    PARAMETERS,
    Defect,
    Launch,
    Rig,
    altered,
    bent,
    calm_host,
    doubled,
    ends,
    failing,
    forgotten,
    ladder_plan,
    other_state,
    unwritten,
    within,
    without,
)
from trn_validate.comparison import comparison_names
from trn_validate.control import measured_noise
from trn_validate.gate import ERROR, FAILED
from trn_validate.launch import Cause
from trn_validate.records import Closing, Header, Step
from trn_validate.spec import Degrees
from trn_validate.stage import Place
from trn_validate.verdict import Outcome

STAGE = "baseline.eager"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        rig = Rig(tmp_path_factory.mktemp("eager"))
        rig.walk(only="environment.device")
        rig.walk(only="environment.imports")
        rig.walk(only="environment.collectives")
        yield rig


def unmoved(launch: Launch, moment: str = "start") -> None:
    """A defect in which the control has the tensors of the reference."""
    assert launch.spec is not None
    assert launch.keeps is not None
    plain = Keeps.of(launch.spec.model_copy(update={"perturb": 0}))
    launch.keeps.arrays[moment] = plain.arrays[moment]


def ulp(value: float) -> float:
    return math.nextafter(value, math.inf)


def test_healthy_training_passes_with_every_check_it_owes(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.expects
    assert not verdict.missing
    assert verdict.device == "cpu"
    assert verdict.measures["parameters"] == PARAMETERS
    assert len(verdict.series["loss"]) == 6
    assert verdict.layout is not None
    assert verdict.layout.tokens_per_step == 1024


def test_seed_reference_and_repetitions_are_artifacts_of_the_verdict(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    paths = {artifact.path for artifact in verdict.artifacts}
    folder = f"{STAGE}/{verdict.attempt}"
    assert {f"{folder}/seed/.metadata", f"{folder}/seed/__0_0.distcp"} <= paths
    for name in ("reference", "rerun", "control", "accumulation"):
        assert f"{folder}/{name}/records/rank-0.jsonl" in paths
        assert f"{folder}/{name}/captures/gradient.stage-0.safetensors" in paths
        assert f"{folder}/{name}/captures/end.stage-0.safetensors" in paths
    starts = [
        path for path in sorted(paths) if path.endswith("/captures/start.stage-0.safetensors")
    ]
    assert starts == [
        f"{folder}/{name}/captures/start.stage-0.safetensors" for name in ("control", "reference")
    ]


def test_the_repetitions_are_other_processes_than_the_reference(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert [pair.candidate.name for pair in verdict.compared] == [
        "rerun",
        "control",
        "accumulation",
    ]
    for pair in verdict.compared:
        assert pair.reference.name == "reference"
        assert not set(pair.reference.processes) & set(pair.candidate.processes)


def test_the_reference_is_timed_alone_and_its_repetitions_run_together(rig: Rig) -> None:
    del rig.launcher.requests[:]
    rig.rerun(STAGE)
    assert rig.launched() == ["seed", "reference", "rerun", "control", "accumulation"]


def test_the_accumulation_run_has_one_sample_in_a_micro_batch(tmp_path: Path) -> None:
    plan = ladder_plan(tmp_path)
    spec = accumulation_spec(
        plan, first_rung(plan), Place(plan=plan, private=tmp_path, seed=Path())
    )
    assert (spec.name, spec.local_batch_size, spec.accumulation) == (ACCUMULATION, 1, 4)
    assert spec.tokens_per_step == 1024


# What the reference alone can show


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(without(Closing), "ranks that finished", id="no closing line"),
        pytest.param(altered(Header, parameter_device="cuda"), "device", id="other device"),
        pytest.param(altered(Header, comm_backend="mpi"), "communication backend", id="backend"),
        pytest.param(altered(Header, degrees=Degrees(dp_shard=2)), "degrees", id="other degrees"),
        pytest.param(altered(Header, accumulation=2), "degrees", id="other accumulation"),
    ],
)
def test_a_reference_that_is_not_what_it_should_be_fails_by_the_check_meant_for_it(
    rig: Rig, defect: Defect, check: str
) -> None:
    assert failing(rig.rerun(STAGE, within("reference", defect))) == [f"reference: {check}"]


def test_a_reference_with_too_few_steps_leaves_nothing_to_compare_the_last_with(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("reference", without(Step, step=6)))
    assert failing(verdict) == [
        "reference: steps",
        "reference: replicas agree",
        "rerun: steps compared",
        "control: steps with other rows",
        "control: noise of the parameters after the last step",
    ]
    # Where the noise is no number, no limit follows, and the repetition is owed.
    assert verdict.missing == comparison_names(ACCUMULATION)


def test_training_that_takes_no_step_does_not_pass(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, without(Step))
    assert verdict.outcome is Outcome.FAILED
    assert {f"{name}: steps" for name in ("reference", "rerun", "control")} <= {
        check.name for check in verdict.failed_checks
    }
    assert verdict.missing == comparison_names(ACCUMULATION)


def test_a_loss_that_does_not_fall_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, altered(Step, loss=math.log(2048)))
    assert failing(verdict) == ["reference: fall of the loss"]
    assert verdict.failed_checks[0].measured == 0


def test_a_loss_that_rises_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, altered(Step, loss=lambda old: 2 * math.log(2048) - old))
    assert failing(verdict) == ["reference: fall of the loss"]


def test_a_first_loss_far_from_the_logarithm_of_the_vocabulary_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, altered(Step, loss=lambda old: old + 1))
    assert failing(verdict) == ["reference: first loss from ln(vocabulary)"]
    assert "ln(2048) is 7.624619" in verdict.failed_checks[0].detail


def test_a_loss_that_is_not_a_number_in_a_finished_run_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("reference", altered(Step, step=3, loss=math.nan)))
    assert "reference: numbers that are not finite" in failing(verdict)
    check = next(c for c in verdict.failed_checks if "not finite" in c.name)
    assert check.detail == "loss of rank 0 at step 3"


def test_a_trainer_that_refuses_its_loss_at_step_3_fails_by_that_and_not_by_the_crash(
    rig: Rig,
) -> None:
    refused = altered(Step, step=3, grad_norm=math.nan)
    crash = ends(Cause.CRASH, "rank 0: RuntimeError: Loss is not finite", after=3)
    rig.spoil(within("reference", refused), within("reference", crash))
    assert rig.walk(only=STAGE) == FAILED
    rig.spoil()
    verdict = rig.verdict(STAGE)
    assert failing(verdict) == ["reference: numbers that are not finite"]
    assert verdict.failed_checks[0].detail == "grad_norm of rank 0 at step 3"
    assert verdict.problem is not None
    assert (verdict.problem.cause, verdict.problem.step) == ("crash", 3)


def test_a_loader_that_is_stuck_on_one_batch_in_every_run_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, altered(Step, rows="0" * 32))
    assert failing(verdict) == ["reference: steps with rows of an earlier step"]
    assert verdict.failed_checks[0].measured == 5


def test_a_loader_that_goes_back_by_one_step_fails(rig: Rig) -> None:
    def back(launch: Launch) -> None:
        for rank, lines in launch.lines.items():
            rows = {line.step: line.rows for line in lines if isinstance(line, Step)}
            launch.lines[rank] = [
                line.model_copy(update={"rows": rows[1]})
                if isinstance(line, Step) and line.step == 4
                else line
                for line in lines
            ]

    verdict = rig.rerun(STAGE, back)
    assert failing(verdict) == ["reference: steps with rows of an earlier step"]
    assert verdict.failed_checks[0].measured == 1


# What the control shows


def test_the_noise_of_the_control_is_in_the_measures_and_the_limits(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("control", altered(Step, loss=lambda old: old + 4e-6)))
    assert verdict.outcome is Outcome.PASSED
    noise = measured_noise(verdict.measures)
    assert noise is not None
    assert noise.loss_absolute == pytest.approx(4e-6)
    assert noise.gradient_relative > 0
    checks = {check.name: check for check in verdict.checks}
    loss = checks["accumulation: loss against the reference"]
    assert loss.limit == 5 * noise.loss_absolute
    assert loss.basis is not None
    assert loss.basis.control == noise.loss_absolute
    assert checks["accumulation: gradient of step 1"].limit == 1e-5


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(unmoved, "weights that were not moved", id="start"),
        pytest.param(lambda launch: unmoved(launch, "gradient"), "effect on the gradient", id="no"),
        pytest.param(
            altered(Step, step=5, rows="f" * 32), "steps with other rows", id="other rows"
        ),
        pytest.param(
            bent("gradient", lambda a: a * 1.0002), "noise of the gradient of step 1", id="noisy"
        ),
        pytest.param(
            bent("end", lambda a: a + 0.01), "noise of the parameters after the last step", id="end"
        ),
        pytest.param(
            altered(Step, step=2, loss=lambda old: old + 6e-5), "noise of the loss", id="loss"
        ),
        pytest.param(without(Closing), "ranks that finished", id="no closing line"),
    ],
)
def test_a_control_that_is_none_or_too_noisy_fails_by_the_check_meant_for_it(
    rig: Rig, defect: Defect, check: str
) -> None:
    assert failing(rig.rerun(STAGE, within("control", defect))) == [f"control: {check}"]


def test_a_control_that_is_no_number_leaves_the_accumulation_unjudged_and_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("control", bent("gradient", lambda a: a * math.nan)))
    assert failing(verdict) == [
        "control: effect on the gradient",
        "control: noise of the gradient of step 1",
    ]
    assert verdict.missing == comparison_names(ACCUMULATION)


# What the rerun shows


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(altered(Header, parameters=PARAMETERS - 1), "parameters", id="parameters"),
        pytest.param(
            altered(Step, step=2, rows="0" * 32), "steps with other rows", id="other rows"
        ),
        pytest.param(
            altered(Step, step=4, loss=ulp), "loss against the reference", id="loss by one ulp"
        ),
        pytest.param(
            altered(Step, step=4, grad_norm=ulp),
            "grad norm against the reference",
            id="grad norm by one ulp",
        ),
        *(
            pytest.param(other_state(part, "end"), "state after the last step", id=part)
            for part in ("model", "optimizer", "scheduler", "data", "rng")
        ),
    ],
)
def test_a_rerun_that_differs_in_anything_fails_by_that(
    rig: Rig, defect: Defect, check: str
) -> None:
    assert failing(rig.rerun(STAGE, within("rerun", defect))) == [f"rerun: {check}"]


def test_a_rerun_that_consumes_half_the_tokens_fails_by_its_tokens(rig: Rig) -> None:
    assert failing(rig.rerun(STAGE, within("rerun", altered(Step, tokens=512)))) == [
        "rerun: tokens per step",
        "rerun: steps with other tokens",
    ]


def test_the_part_of_the_state_that_differs_is_named(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("rerun", other_state("optimizer", "end")))
    assert verdict.failed_checks[0].detail == "optimizer of rank 0"


# What gradient accumulation shows


def test_accumulation_whose_loss_leaves_the_limit_at_one_step_fails_and_names_it(rig: Rig) -> None:
    off = altered(Step, step=3, loss=lambda old: old + 1e-5)
    verdict = rig.rerun(STAGE, within(ACCUMULATION, off))
    assert failing(verdict) == ["accumulation: loss against the reference"]
    assert verdict.failed_checks[0].detail.endswith("first over the limit at step 3")


def test_accumulation_with_halved_gradients_and_equal_losses_fails(rig: Rig) -> None:
    halved = altered(Step, grad_norm=lambda old: old / 2)
    verdict = rig.rerun(STAGE, within(ACCUMULATION, halved))
    assert failing(verdict) == ["accumulation: grad norm against the reference"]
    assert verdict.failed_checks[0].measured == pytest.approx(0.5, abs=1e-5)


def test_accumulation_that_did_not_accumulate_fails(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within(ACCUMULATION, altered(Header, accumulation=1)))
    assert failing(verdict) == ["accumulation: degrees"]


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(bent("gradient", doubled), "gradient of step 1", id="gradient"),
        pytest.param(bent("start", doubled), "weights at the start", id="start"),
        pytest.param(
            bent("end", lambda a: a + 0.01), "parameters after the last step", id="parameters"
        ),
        pytest.param(forgotten("start", 0), "replicas agree", id="nothing of the start"),
    ],
)
def test_accumulation_whose_tensors_are_other_fails_though_its_losses_are_equal(
    rig: Rig, defect: Defect, check: str
) -> None:
    verdict = rig.rerun(STAGE, within(ACCUMULATION, defect))
    assert f"accumulation: {check}" in failing(verdict)
    assert len(verdict.failed_checks) == (2 if check == "replicas agree" else 1)


# What leaves nothing to judge


@pytest.mark.parametrize("name", ["reference", "control", "accumulation"])
@pytest.mark.parametrize("moment", ["gradient", "end"])
def test_a_launch_that_left_no_file_of_tensors_is_an_error_that_names_it(
    rig: Rig, name: str, moment: str
) -> None:
    rig.spoil(within(name, unwritten(moment)))
    assert rig.walk(only=STAGE) == ERROR
    rig.spoil()
    verdict = rig.verdict(STAGE)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert f"{name}/captures/{moment}.stage-0.safetensors" in verdict.problem.what
    assert "no file of tensors" in verdict.problem.what


@pytest.mark.parametrize("name", ["seed", "reference", "rerun", "control", "accumulation"])
def test_a_launch_that_crashes_is_an_error_that_names_it(rig: Rig, name: str) -> None:
    rig.spoil(within(name, ends(Cause.OUT_OF_MEMORY, "rank 0: no memory")))
    assert rig.walk(only=STAGE) == ERROR
    rig.spoil()
    verdict = rig.verdict(STAGE)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert verdict.problem.cause == "out_of_memory"
    assert verdict.problem.what == f"{name}: rank 0: no memory"
    assert verdict.problem.log == f"{STAGE}/{verdict.attempt}/{name}/output.log"
    assert (rig.run.folder / verdict.problem.log).read_text() == "Traceback: it broke\n"


def test_a_seed_that_leaves_no_checkpoint_is_an_error(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("seed", lambda launch: launch.saves.clear()))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert "left no such file or folder" in verdict.problem.what


def test_a_record_that_is_none_is_an_error_of_the_launch_and_not_of_the_evidence(rig: Rig) -> None:
    def garbage(launch: Launch) -> None:
        launch.lines[0][1] = launch.lines[0][1].model_copy(update={"kind": "nothing"})

    rig.spoil(within("reference", garbage))
    assert rig.walk(only=STAGE) == ERROR
    rig.spoil()
    problem = rig.verdict(STAGE).problem
    assert problem is not None
    assert "reference wrote not a record" in problem.what


def test_a_rank_0_without_a_record_is_an_error_and_not_a_pass(rig: Rig) -> None:
    verdict = rig.rerun(STAGE, within("reference", lambda launch: launch.lines.clear()))
    assert verdict.outcome is Outcome.ERROR
