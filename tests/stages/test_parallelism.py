from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages import stages_of
from stages.parallelism import members
from tests.fake_training import (
    PARAMETERS,
    Defect,
    Launch,
    Rig,
    altered,
    bent,
    climbed,
    doubled,
    drifted,
    ends,
    failing,
    lacking,
    ladder_plan,
    other_state,
    two_ladders_plan,
    unwritten,
    within,
    without,
)
from trn_validate.control import measured_noise
from trn_validate.gate import ERROR, FAILED, PASSED
from trn_validate.launch import Cause
from trn_validate.records import Closing, Header, Step
from trn_validate.spec import Degrees
from trn_validate.stage import Place
from trn_validate.verdict import Outcome, Verdict

FSDP, TP = "parallelism.fsdp", "parallelism.tp"
FULL, FULL_TP = "parallelism.full_fsdp", "parallelism.full_tp"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with climbed(tmp_path_factory.mktemp("ladder")) as rig:
        yield rig


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A run of two ladders."""
    folder = tmp_path_factory.mktemp("two")
    with climbed(folder, two_ladders_plan(folder)) as rig:
        yield rig


def test_a_plan_has_one_stage_for_each_rung_but_the_first_of_its_first_ladder(
    tmp_path: Path,
) -> None:
    assert [stage.id for stage in members(ladder_plan(tmp_path))] == [FSDP, TP]
    assert [stage.id for stage in members(two_ladders_plan(tmp_path))] == [FSDP, TP, FULL, FULL_TP]


def test_a_stage_asks_about_the_dimension_that_its_rung_adds(tmp_path: Path) -> None:
    asks = [stage.asks for stage in members(two_ladders_plan(tmp_path))]
    assert asks == [
        "does dp_shard 2 on baseline leave training unchanged?",
        "does tp 2 on fsdp leave training unchanged?",
        "does full train in its smallest layout, dp_shard2?",
        "does tp 2 on full_fsdp leave training unchanged?",
    ]


@pytest.mark.parametrize("stage", [FSDP, TP])
def test_a_layout_that_leaves_training_unchanged_passes(rig: Rig, stage: str) -> None:
    verdict = rig.verdict(stage)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.expects
    assert not verdict.missing
    assert verdict.layout is not None
    assert verdict.layout.tokens_per_step == 1024


def test_a_comparison_names_the_reference_of_the_first_stage_and_another_layout(rig: Rig) -> None:
    (pair,) = rig.verdict(TP).compared
    assert pair.differ == "layout"
    assert pair.reference.attempt == "baseline.eager/1"
    assert (pair.reference.layout, pair.candidate.layout) == (
        "one process, accumulation 1",
        "dp_shard2 x tp2, accumulation 1",
    )
    assert len(pair.candidate.processes) == 4


def test_speed_and_memory_are_recorded_and_not_judged(rig: Rig) -> None:
    measures = rig.verdict(FSDP).measures
    assert measures["tokens_per_second"] == 2048
    assert measures["peak_memory_bytes"] == 2**30
    assert not any("second" in check.name for check in rig.verdict(FSDP).checks)


def test_the_layout_starts_from_the_seed_of_the_first_stage(rig: Rig, tmp_path: Path) -> None:
    asked = next(request for request in rig.launcher.requests if request.name == "tp")
    text = (asked.folder / "spec.json").read_text()
    assert str(rig.run.folder / "baseline.eager/1/seed") in text
    (stage,) = (stage for stage in stages_of(rig.plan) if stage.id == TP)
    (shown,) = stage.launches(Place(plan=rig.plan, private=tmp_path, seed=tmp_path / "seed"))
    assert (shown.name, shown.ranks) == (asked.name, asked.ranks)


# Each check, made to fail by one thing


def spoiled(rig: Rig, stage: str, *defects: Defect) -> Verdict:
    """The verdict of a rung's stage whose launch has these defects."""
    if stage == TP:
        rig.rerun(FSDP)
    name = stage.removeprefix("parallelism.")
    return rig.rerun(stage, *(within(name, defect) for defect in defects))


def swapped(launch: Launch) -> None:
    """The rows of steps 2 and 3, each in the place of the other."""
    for rank, lines in launch.lines.items():
        rows = {line.step: line.rows for line in lines if isinstance(line, Step)}
        rows[2], rows[3] = rows[3], rows[2]
        launch.lines[rank] = [
            line.model_copy(update={"rows": rows[line.step]}) if isinstance(line, Step) else line
            for line in lines
        ]


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(without(Closing, rank=1), "ranks that finished", id="no closing line"),
        pytest.param(
            altered(Closing, rank=1, steps=5), "ranks that finished", id="closing counts another"
        ),
        pytest.param(altered(Header, rank=1, parameter_device="cuda"), "device", id="device"),
        pytest.param(
            altered(Header, rank=1, comm_backend="mpi"), "communication backend", id="mpi"
        ),
        pytest.param(altered(Header, degrees=Degrees(dp_replicate=2)), "degrees", id="degrees"),
        pytest.param(altered(Header, parameters=PARAMETERS + 1), "parameters", id="parameters"),
        pytest.param(
            altered(Step, rank=1, step=2, rows="0" * 32), "steps with other rows", id="other rows"
        ),
        pytest.param(swapped, "steps with other rows", id="rows of two steps swapped"),
        pytest.param(
            altered(Step, step=4, loss=lambda old: old + 6e-6),
            "loss against the reference",
            id="loss at one step that heals",
        ),
        pytest.param(
            altered(Step, step=6, loss=lambda old: old - 6e-6),
            "loss against the reference",
            id="loss below the reference",
        ),
        pytest.param(
            altered(Step, grad_norm=lambda old: 1.5 * old),
            "grad norm against the reference",
            id="grad norm by half with equal losses",
        ),
        pytest.param(
            altered(Step, step=1, grad_norm=lambda old: 1.0002 * old),
            "grad norm against the reference",
            id="grad norm at the first step",
        ),
        pytest.param(
            altered(Step, rank=1, loss=lambda old: old + 6e-6), "ranks agree", id="loss of a rank"
        ),
        pytest.param(
            altered(Step, rank=1, step=3, grad_norm=lambda old: 1.001 * old),
            "ranks agree",
            id="grad norm of a rank",
        ),
    ],
)
def test_a_layout_that_changes_training_fails_by_the_check_meant_for_it(
    rig: Rig, defect: Defect, check: str
) -> None:
    assert failing(spoiled(rig, FSDP, defect)) == [f"fsdp: {check}"]


@pytest.mark.parametrize(
    ("defect", "check", "detail"),
    [
        pytest.param(
            bent("gradient", doubled),
            "gradient of step 1",
            "every parameter: a constant factor of 2",
            id="gradient doubled",
        ),
        pytest.param(
            bent("gradient", lambda a: a[::-1], "norm.weight", "layers.0.ffn_norm.weight"),
            "gradient of step 1",
            "only weights that are replicated under tp (norms)",
            id="gradient of norms",
        ),
        pytest.param(
            bent("gradient", lambda a: 0 * a, "lm_head.weight"),
            "gradient of step 1",
            "lm_head.weight; all zero",
            id="gradient zero",
        ),
        pytest.param(
            bent("gradient", lambda a: math.nan * a, "lm_head.weight"),
            "gradient of step 1",
            "lm_head.weight; not a finite number",
            id="gradient NaN",
        ),
        pytest.param(
            bent("start", doubled, "norm.weight"),
            "weights at the start",
            "norm.weight",
            id="other weights",
        ),
        pytest.param(
            bent("end", lambda a: a + 0.01, "lm_head.weight"),
            "parameters after the last step",
            "lm_head.weight; change since the seed, 1 of 7 parameters",
            id="parameters",
        ),
        pytest.param(
            drifted(3, "end", "norm.weight"),
            "replicas agree",
            "end of norm.weight: rank 3 and rank 0 differ",
            id="replica drifted",
        ),
    ],
)
def test_a_layout_with_other_tensors_fails_though_its_losses_are_equal(
    rig: Rig, defect: Defect, check: str, detail: str
) -> None:
    verdict = spoiled(rig, TP, defect)
    assert failing(verdict) == [f"tp: {check}"]
    assert verdict.failed_checks[0].detail.endswith(detail)


def test_a_parameter_without_a_gradient_is_counted_and_named(rig: Rig) -> None:
    verdict = spoiled(rig, FSDP, lacking("gradient", "norm.weight"))
    assert failing(verdict) == ["fsdp: parameters compared", "fsdp: gradient of step 1"]
    assert verdict.failed_checks[0].detail == "norm.weight has no gradient"


def test_the_limits_of_a_layout_follow_from_the_control_of_its_ladder(rig: Rig) -> None:
    spoiled(rig, FSDP)
    noise = measured_noise(rig.verdict("baseline.eager").measures)
    assert noise is not None
    found = {
        check.name.partition(": ")[2]: check.basis.control
        for check in rig.verdict(FSDP).checks
        if check.basis is not None
    }
    assert found == {
        "loss against the reference": noise.loss_absolute,
        "grad norm against the reference": noise.grad_norm_relative,
        "gradient of step 1": noise.gradient_relative,
        "parameters after the last step": noise.parameter_relative,
    }


def test_what_a_layout_kept_is_in_the_run_folder_and_named_by_its_verdict(rig: Rig) -> None:
    verdict = spoiled(rig, FSDP)
    folder = f"{FSDP}/{verdict.attempt}/fsdp/captures"
    kept = {a.path for a in verdict.artifacts if a.path.startswith(folder)}
    assert kept == {f"{folder}/{moment}.stage-0.safetensors" for moment in ("gradient", "end")}
    assert all((rig.run.folder / path).is_file() for path in kept)
    private = rig.store.root / ".private"
    assert list(private.rglob("fsdp/records/*.jsonl"))
    assert not list(private.rglob("fsdp/captures"))


@pytest.mark.parametrize("moment", ["gradient", "end"])
def test_a_layout_that_left_no_file_of_tensors_is_an_error_of_its_launch(
    rig: Rig, moment: str
) -> None:
    rig.spoil(within("fsdp", unwritten(moment)))
    assert rig.walk(only=FSDP) == ERROR
    rig.spoil()
    verdict = rig.verdict(FSDP)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert f"fsdp/captures/{moment}.stage-0.safetensors: no file" in verdict.problem.what


def test_tp_ranks_that_saw_different_rows_fail_and_are_named(rig: Rig) -> None:
    verdict = spoiled(rig, TP, altered(Step, rank=3, step=5, rows="f" * 32))
    assert failing(verdict) == ["tp: ranks agree"]
    assert verdict.failed_checks[0].detail == (
        "ranks 2 and 3 share samples but saw other rows at step 5"
    )


def test_a_global_batch_changed_by_one_rung_fails_by_its_tokens(rig: Rig) -> None:
    verdict = spoiled(rig, FSDP, altered(Step, tokens=lambda old: 2 * old))
    assert failing(verdict) == ["fsdp: tokens per step", "fsdp: steps with other tokens"]
    assert verdict.failed_checks[0].measured == 2048
    assert verdict.failed_checks[0].detail == "step 1"


def test_too_few_steps_fail(rig: Rig) -> None:
    verdict = spoiled(rig, FSDP, without(Step, step=6))
    assert failing(verdict) == [
        "fsdp: steps",
        "fsdp: steps compared",
        # What is kept at the end is kept after the last step.
        "fsdp: parameters compared",
        "fsdp: replicas agree",
        "fsdp: parameters after the last step",
    ]


def test_a_step_that_one_rank_lacks_is_not_compared(rig: Rig) -> None:
    verdict = spoiled(rig, FSDP, without(Step, rank=1, step=6))
    assert failing(verdict) == ["fsdp: steps", "fsdp: steps compared", "fsdp: replicas agree"]
    assert verdict.failed_checks[-1].detail == "rank 1 kept no end"


def test_too_few_ranks_fail(rig: Rig) -> None:
    names = failing(spoiled(rig, FSDP, lambda launch: launch.lines.pop(1)))
    assert names[0] == "fsdp: ranks that finished"
    # Half of the ranks saw half of the samples.
    assert names[1:] == [
        "fsdp: tokens per step",
        "fsdp: steps with other tokens",
        "fsdp: steps with other rows",
    ]


def test_a_number_that_is_none_fails_in_every_check_that_it_enters(rig: Rig) -> None:
    verdict = spoiled(rig, FSDP, altered(Step, step=3, loss=math.nan))
    assert failing(verdict) == [
        "fsdp: numbers that are not finite",
        "fsdp: loss against the reference",
    ]
    assert verdict.failed_checks[0].detail == "loss of rank 0 at step 3"


def test_a_loss_that_is_not_a_number_fails_as_that_though_the_launch_crashed(rig: Rig) -> None:
    refused = altered(Step, rank=1, step=3, loss=math.nan, grad_norm=math.nan)
    rig.spoil(within("fsdp", refused), within("fsdp", ends(Cause.CRASH, after=3)))
    assert rig.walk(only=FSDP) == FAILED
    rig.spoil()
    verdict = rig.verdict(FSDP)
    assert failing(verdict) == ["fsdp: numbers that are not finite"]
    assert verdict.failed_checks[0].detail == "loss of rank 1 at step 3"


def test_the_first_rank_and_step_that_are_wrong_are_named(rig: Rig) -> None:
    device = spoiled(rig, TP, altered(Header, rank=2, parameter_device="cuda"))
    assert device.failed_checks[0].detail == "rank 2"
    assert device.failed_checks[0].measured == "cuda"
    loss = spoiled(rig, TP, altered(Step, step=4, loss=lambda old: old + 1e-3))
    assert loss.failed_checks[0].detail == "largest at step 4, first over the limit at step 4"


@pytest.mark.parametrize("cause", [Cause.HANG, Cause.TIMEOUT, Cause.KILLED, Cause.CRASH])
def test_a_launch_that_ends_badly_is_an_error_with_its_last_step(rig: Rig, cause: Cause) -> None:
    rig.spoil(within("fsdp", ends(cause, "rank 1 is gone")))
    assert rig.walk(only=FSDP) == ERROR
    rig.spoil()
    verdict = rig.verdict(FSDP)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert (verdict.problem.cause, verdict.problem.rank, verdict.problem.step) == (cause, 0, 2)
    assert verdict.problem.excerpt == "Traceback: it broke\n"


def test_a_teardown_that_crashes_after_correct_work_passes_and_is_on_record(rig: Rig) -> None:
    def teardown(launch: Launch) -> None:
        launch.cause = Cause.TEARDOWN

    verdict = spoiled(rig, FSDP, teardown)
    assert verdict.outcome is Outcome.PASSED
    assert [command.cause for command in verdict.commands] == ["teardown"]


# The first rung of a later ladder


def test_two_ladders_pass_and_each_has_a_reference_of_its_own(tall: Rig) -> None:
    assert set(tall.outcomes().values()) == {"passed"}
    (first,) = tall.verdict(TP).compared
    (second,) = tall.verdict(FULL_TP).compared
    assert first.reference.attempt == "baseline.eager/1"
    assert second.reference.attempt == f"{FULL}/1"
    assert second.reference.layout == "dp_shard2, accumulation 1"


def test_the_first_rung_of_a_later_ladder_is_run_again_and_resumed(tall: Rig) -> None:
    verdict = tall.verdict(FULL)
    assert [command.name for command in verdict.commands] == [
        "seed",
        "reference",
        "rerun",
        "control",
        "save",
        "resume",
    ]
    assert [pair.candidate.name for pair in verdict.compared] == [
        "rerun",
        "control",
        "save",
        "resume",
    ]
    asked = [request for request in tall.launcher.requests if FULL in str(request.folder)]
    assert [request.ranks for request in asked] == [1, 2, 2, 2, 2, 2]


def test_the_launches_that_the_plan_shows_are_those_that_run(tall: Rig, tmp_path: Path) -> None:
    (stage,) = (stage for stage in stages_of(tall.plan) if stage.id == FULL)
    shown = stage.launches(Place(plan=tall.plan, private=tmp_path, seed=tmp_path / "seed"))
    ran = [command.name for command in tall.verdict(FULL).commands]
    assert [request.name for request in shown] == ran


@pytest.mark.parametrize(
    ("name", "defect", "check"),
    [
        ("reference", altered(Header, comm_backend="mpi"), "reference: communication backend"),
        ("control", altered(Step, step=2, rows="0" * 32), "control: steps with other rows"),
        (
            "control",
            bent("gradient", lambda a: a * 1.0002),
            "control: noise of the gradient of step 1",
        ),
        ("rerun", other_state("optimizer", "end", rank=1), "rerun: state after the last step"),
        ("save", lambda launch: launch.saves.clear(), "save: checkpoint files"),
        (
            "save",
            altered(Step, step=2, loss=lambda old: math.nextafter(old, 0)),
            "save: loss against the reference",
        ),
        ("resume", other_state("data", "start", rank=1), "resume: state at the start"),
    ],
)
def test_a_later_ladder_that_cannot_be_trusted_fails_by_the_check_meant_for_it(
    tall: Rig, name: str, defect: Defect, check: str
) -> None:
    assert failing(tall.rerun(FULL, within(name, defect))) == [check]


def test_a_loader_of_a_later_ladder_that_is_stuck_fails(tall: Rig) -> None:
    assert failing(tall.rerun(FULL, altered(Step, rows="0" * 32))) == [
        "reference: steps with rows of an earlier step"
    ]


def test_a_later_ladder_has_noise_of_its_own(tall: Rig) -> None:
    loud = within("control", altered(Step, loss=lambda old: old + 4e-6))
    tall.rerun(FULL, loud)
    tall.rerun(FULL_TP)
    checks = {check.name: check for check in tall.verdict(FULL_TP).checks}
    assert checks["full_tp: loss against the reference"].limit == pytest.approx(2e-5)
    assert tall.verdict("baseline.eager").measures["control_loss_absolute"] == 0.0


def test_losses_of_a_later_ladder_that_do_not_fall_fail(tall: Rig) -> None:
    assert failing(tall.rerun(FULL, altered(Step, loss=math.log(2048)))) == [
        "reference: fall of the loss"
    ]


def test_a_rung_of_a_later_ladder_is_not_compared_with_the_first_ladder(tall: Rig) -> None:
    # Every launch of the second ladder is off by what the first would not forgive.
    off = altered(Step, loss=lambda old: old + 0.01)
    tall.spoil(lambda launch: None if launch.name == "compiled-baseline" else off(launch))
    assert tall.walk(start=FULL) == PASSED
    tall.spoil()
