from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages import stages_of
from tests.fake_captures import SHAPES
from tests.fake_training import (
    PARAMETERS,
    PARTS,
    Defect,
    Launch,
    Rig,
    accepted,
    altered,
    calm_host,
    ends,
    failing,
    ladder_plan,
    other_state,
    within,
    without,
)
from trn_validate.damage import DAMAGE
from trn_validate.gate import ERROR, FAILED
from trn_validate.judging import place_names
from trn_validate.launch import Cause
from trn_validate.records import Closing, Header, Saved, Step
from trn_validate.resume import RELOAD, RELOADED
from trn_validate.stage import Place
from trn_validate.verdict import Outcome, Verdict

NORM = "norm.weight"
STAGE = "baseline.checkpoint"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        rig = Rig(tmp_path_factory.mktemp("checkpoint"))
        for stage in (
            "environment.device",
            "environment.imports",
            "environment.collectives",
            "baseline.eager",
        ):
            rig.walk(only=stage)
        yield rig


def ulp(value: float) -> float:
    return math.nextafter(value, math.inf)


def spoiled(rig: Rig, name: str, *defects: Defect) -> Verdict:
    """The verdict of a run in which the launch of that name has these defects."""
    return rig.rerun(STAGE, *(within(name, defect) for defect in defects))


def test_a_sound_checkpoint_passes_with_every_check_it_owes(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert verdict.outcome is Outcome.PASSED
    assert not verdict.missing
    elements = next(c for c in verdict.checks if c.name.startswith("export"))
    assert elements.measured == PARAMETERS


def test_the_launches_are_those_that_the_plan_shows(rig: Rig, tmp_path: Path) -> None:
    del rig.launcher.requests[:]
    rig.rerun(STAGE)
    assert rig.launched() == ["save", "resume", "reload", "truncated", "missing"]
    stage = next(stage for stage in stages_of(rig.plan) if stage.id == STAGE)
    shown = stage.launches(Place(plan=rig.plan, private=tmp_path, seed=tmp_path / "seed"))
    assert [request.name for request in shown] == rig.launched()


def test_records_and_export_are_artifacts_of_the_verdict(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    paths = {artifact.path for artifact in verdict.artifacts}
    folder = f"{STAGE}/{verdict.attempt}"
    for name in ("save", "resume"):
        assert f"{folder}/{name}/records/rank-0.jsonl" in paths
    assert f"{folder}/export/model-00001-of-00001.safetensors" in paths


def test_a_checkpoint_is_not_left_in_the_private_folder(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    private = rig.run.private / STAGE / str(verdict.attempt)
    assert not list(private.rglob("*.distcp"))


def test_the_resumed_run_is_another_process_than_the_one_that_saved(rig: Rig) -> None:
    verdict = rig.rerun(STAGE)
    assert [pair.candidate.name for pair in verdict.compared] == ["save", "resume"]
    for pair in verdict.compared:
        assert not set(pair.reference.processes) & set(pair.candidate.processes)


# Saving


def unindexed(launch: Launch) -> None:
    launch.indexed = False


@pytest.mark.parametrize(
    "defect", [lambda launch: launch.saves.clear(), unindexed], ids=["no folder", "no .metadata"]
)
def test_a_checkpoint_that_is_not_there_fails_and_nothing_is_resumed(
    rig: Rig, defect: Defect
) -> None:
    del rig.launcher.requests[:]
    verdict = spoiled(rig, "save", defect)
    assert failing(verdict) == ["save: checkpoint files"]
    assert verdict.failed_checks[0].measured == 0
    assert rig.launched() == ["save"]


def test_saving_that_changes_training_fails(rig: Rig) -> None:
    verdict = spoiled(rig, "save", altered(Step, step=2, loss=ulp))
    assert failing(verdict) == ["save: loss against the reference"]


def test_saving_on_another_device_fails(rig: Rig) -> None:
    assert failing(spoiled(rig, "save", altered(Header, parameter_device="cuda"))) == [
        "save: device"
    ]


# Resuming


@pytest.mark.parametrize("part", PARTS)
def test_a_resumed_state_that_lacks_anything_fails_and_names_it(rig: Rig, part: str) -> None:
    verdict = spoiled(rig, "resume", other_state(part, "start"))
    assert failing(verdict) == ["resume: state at the start"]
    assert verdict.failed_checks[0].detail == f"{part} of rank 0"


def test_a_resumed_run_that_tells_no_state_fails(rig: Rig) -> None:
    def untold(launch: Launch) -> None:
        launch.lines[0] = [line for line in launch.lines[0] if line.kind != "state"]

    verdict = spoiled(rig, "resume", untold)
    assert "resume: state at the start" in failing(verdict)
    assert "no state of rank 0" in verdict.failed_checks[0].detail


def test_a_resumed_run_that_ends_in_another_state_fails(rig: Rig) -> None:
    verdict = spoiled(rig, "resume", other_state("model", "end"))
    # The export is made from that state, but its weights are those that were saved.
    assert "resume: state after the last step" in failing(verdict)


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(
            altered(Step, step=5, loss=ulp), "loss against the reference", id="loss by one ulp"
        ),
        pytest.param(
            altered(Step, step=5, grad_norm=ulp),
            "grad norm against the reference",
            id="grad norm by one ulp",
        ),
        pytest.param(
            altered(Step, step=4, rows="0" * 32), "steps with other rows", id="other rows"
        ),
        pytest.param(altered(Step, tokens=512), "steps with other tokens", id="other tokens"),
        pytest.param(without(Step, step=4), "steps compared", id="a step left out"),
        pytest.param(without(Closing), "ranks that finished", id="no closing line"),
    ],
)
def test_a_resumed_run_that_goes_another_way_fails_by_the_check_meant_for_it(
    rig: Rig, defect: Defect, check: str
) -> None:
    assert failing(spoiled(rig, "resume", defect)) == [f"resume: {check}"]


@pytest.mark.parametrize("launch", ["resume", "reload"])
@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (altered(Header, parameter_device="cuda"), "device"),
        (altered(Header, comm_backend="mpi"), "communication backend"),
        (altered(Header, accumulation=3), "degrees"),
    ],
)
def test_loading_in_another_place_or_layout_fails(
    rig: Rig, launch: str, defect: Defect, check: str
) -> None:
    assert failing(spoiled(rig, launch, defect)) == [f"{launch}: {check}"]


def test_a_resume_that_begins_again_from_the_start_fails(rig: Rig) -> None:
    def forgetful(launch: Launch) -> None:
        for rank, lines in launch.lines.items():
            launch.lines[rank] = [
                line.model_copy(update={"step": line.step - 3}) if isinstance(line, Step) else line
                for line in lines
            ]

    names = failing(spoiled(rig, "resume", forgetful))
    assert "resume: steps compared" in names


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("model.norm.weight", f"weights, with {PARAMETERS - 4} of {PARAMETERS} elements"),
        (f"optimizer.state.{NORM}.exp_avg_sq", f"optimizer.state.{NORM}.exp_avg_sq"),
        ("lr_scheduler", "lr_scheduler"),
        ("dataloader", "dataloader"),
        ("train_state", "train_state"),
    ],
)
def test_an_index_that_lacks_a_part_of_the_state_fails(rig: Rig, name: str, told: str) -> None:
    kept = altered(Saved, elements=lambda old: {k: v for k, v in old.items() if not lost(k, name)})
    verdict = spoiled(rig, "save", kept)
    assert failing(verdict) == ["save: entries of the checkpoint"]
    assert verdict.failed_checks[0].detail == f"first {told}"


def lost(entry: str, name: str) -> bool:
    return entry == name or entry.startswith(f"{name}.")


def test_a_checkpoint_of_which_nothing_is_told_lacks_everything(rig: Rig) -> None:
    verdict = spoiled(rig, "save", without(Saved))
    assert failing(verdict) == ["save: entries of the checkpoint"]
    assert verdict.failed_checks[0].measured == 2 * len(SHAPES) + 3 + 1


# Exporting


def test_an_export_that_lacks_a_tensor_fails(rig: Rig) -> None:
    verdict = spoiled(rig, "resume", lambda launch: launch.tensors.pop("model.norm.weight"))
    assert failing(verdict) == ["export: elements in the safetensors"]
    assert verdict.failed_checks[0].measured == PARAMETERS - 4
    assert verdict.failed_checks[0].detail == "3 tensors"


def test_an_export_that_is_not_there_fails_and_is_not_loaded(rig: Rig) -> None:
    del rig.launcher.requests[:]
    verdict = spoiled(rig, "resume", lambda launch: launch.tensors.clear())
    assert failing(verdict) == ["export: elements in the safetensors"]
    assert verdict.missing == (*place_names(RELOAD), RELOADED)
    assert "reload" not in rig.launched()


def test_a_reloaded_model_with_other_weights_fails(rig: Rig) -> None:
    verdict = spoiled(rig, "reload", other_state("model", "start"))
    assert failing(verdict) == [RELOADED]
    assert verdict.failed_checks[0].detail == "model of rank 0"


def test_a_reloaded_model_need_not_have_the_optimizer_that_the_export_leaves_out(rig: Rig) -> None:
    verdict = spoiled(rig, "reload", other_state("optimizer", "start"))
    assert verdict.outcome is Outcome.PASSED


# Damage


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_shard_that_is_silently_accepted_fails(rig: Rig, how: str) -> None:
    verdict = spoiled(rig, how, accepted)
    assert failing(verdict) == [f"{how} shard: steps trained on it"]
    assert verdict.failed_checks[0].measured == 6


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_shard_that_ends_in_success_without_a_step_fails_too(rig: Rig, how: str) -> None:
    verdict = spoiled(rig, how, accepted, without(Step))
    assert failing(verdict) == [f"{how} shard: steps trained on it"]
    assert verdict.failed_checks[0].measured == 1


def test_a_step_that_was_trained_before_the_crash_fails(rig: Rig) -> None:
    verdict = spoiled(rig, "missing", accepted, ends(Cause.KILLED, after=4))
    assert failing(verdict) == ["missing shard: steps trained on it"]


def test_what_was_said_of_the_damage_is_on_record(rig: Rig) -> None:
    checks = {check.name: check for check in rig.rerun(STAGE).checks}
    detail = checks["missing shard: steps trained on it"].detail
    assert detail.startswith("__0_0.distcp: rank 0: CheckpointError: FileNotFoundError")


@pytest.mark.parametrize(
    "cause", [Cause.NO_SPACE, Cause.PORT, Cause.IMPORT, Cause.HANG, Cause.OUT_OF_MEMORY]
)
def test_a_launch_that_fails_for_another_reason_notices_no_damage(rig: Rig, cause: Cause) -> None:
    rig.spoil(within("missing", accepted), within("missing", ends(cause, after=0)))
    assert rig.walk(only=STAGE) == ERROR
    rig.spoil()
    problem = rig.verdict(STAGE).problem
    assert problem is not None
    assert problem.cause == cause.value


def test_a_crash_before_the_trainer_is_built_notices_no_damage(rig: Rig) -> None:
    def early(launch: Launch) -> None:
        accepted(launch)
        ends(Cause.CRASH)(launch)
        launch.lines.clear()

    assert spoiled(rig, "truncated", early).outcome is Outcome.ERROR


def test_a_save_that_crashes_is_an_error(rig: Rig) -> None:
    rig.spoil(within("save", ends(Cause.TIMEOUT)))
    assert rig.walk(only=STAGE) == ERROR
    rig.spoil()


def test_a_failed_check_of_the_checkpoint_exits_1(tmp_path: Path, rig: Rig) -> None:
    rig.spoil(within("resume", other_state("rng", "start")))
    assert rig.walk(only=STAGE) == FAILED
    rig.spoil()


def test_an_export_that_is_no_safetensors_file_is_an_error(rig: Rig) -> None:
    def torn(launch: Launch) -> None:
        folder = Path(launch.spec.dump) / "checkpoint/step-6" if launch.spec else Path()
        folder.mkdir(parents=True)
        (folder / "other.safetensors").write_bytes(b"no header")

    verdict = spoiled(rig, "resume", torn)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert "not a safetensors file" in verdict.problem.what


def test_a_change_of_the_first_rung_makes_the_verdict_stale(rig: Rig, tmp_path: Path) -> None:
    rig.rerun("baseline.eager")
    rig.rerun(STAGE)
    plan = rig.plan
    try:
        rig.plan = ladder_plan(tmp_path, "paths.native.ladders.0.workload.seed=7")
        reason = rig.standing(STAGE).freshness.reason
    finally:
        rig.plan = plan
    assert reason == "changed: plan"
    assert rig.standing(STAGE).freshness.fresh
