from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.fake_training import (
    Defect,
    Launch,
    altered,
    drifted,
    imagined,
    ladder_plan,
    other_state,
    two_ladders_plan,
    without,
)
from trn_validate import plan as plans
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.ladder import resolve
from trn_validate.launching import Trial
from trn_validate.records import State, Step
from trn_validate.reference import (
    REFERENCE,
    RERUN,
    control_spec,
    reference_checks,
    reference_names,
    reference_spec,
    rerun_checks,
    rerun_names,
    seed_spec,
    state_check,
)
from trn_validate.spec import Degrees, RunSpec

LAST = 6
EVERY = (0, 3, LAST)
NORM = "norm.weight"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_plan(tmp_path_factory.mktemp("plan"))


def neuron_plan() -> Plan:
    return plans.load(ROOT / "configs/trn2.48xlarge.yaml")


# What is launched


def test_the_seed_is_made_by_one_process_whatever_the_rung_is(tmp_path: Path) -> None:
    plan = two_ladders_plan(tmp_path)
    spec = seed_spec(plan, resolve(plan.ladders[1])[0], tmp_path)
    assert spec.degrees == Degrees()
    assert spec.checkpoint.create_seed
    assert spec.checkpoint.load_path is None


def test_the_seed_of_a_neuron_plan_is_made_on_the_host_s_cpu(tmp_path: Path) -> None:
    plan = neuron_plan()
    assert seed_spec(plan, resolve(plan.ladders[1])[0], tmp_path).device == "cpu"


def test_the_reference_starts_from_the_seed_and_tells_its_last_state(
    plan: Plan, tmp_path: Path
) -> None:
    rung = resolve(plan.ladders[0])[0]
    spec = reference_spec(plan, rung, "reference", tmp_path, Path("seed"))
    assert spec.checkpoint.load_path == str(Path("seed").absolute())
    assert spec.digest_steps == (LAST,)


def test_the_reference_alone_keeps_the_start_and_counts_what_it_communicates(
    plan: Plan, tmp_path: Path
) -> None:
    rung = resolve(plan.ladders[0])[0]
    names = (REFERENCE, RERUN)
    specs = [reference_spec(plan, rung, name, tmp_path, Path("seed")) for name in names]
    assert [spec.capture for spec in specs] == ["full", "full"]
    assert [spec.keep_start for spec in specs] == [True, False]
    assert [spec.count_communication for spec in specs] == [True, False]
    assert {spec.perturb for spec in specs} == {0}


def test_the_control_is_the_reference_from_moved_weights_and_nothing_else(
    plan: Plan, tmp_path: Path
) -> None:
    rung = resolve(plan.ladders[0])[0]
    control = control_spec(plan, rung, tmp_path, Path("seed"))
    rerun = reference_spec(plan, rung, RERUN, tmp_path, Path("seed"))
    assert (control.name, control.perturb) == ("control", 1)
    places = {"name", "records", "dump", "stacks"}
    same = {*RunSpec.model_fields} - {*places, "perturb", "keep_start", "digest_steps"}
    assert control.keep_start
    assert {name for name in same if getattr(control, name) != getattr(rerun, name)} == set()
    again = control_spec(plan, rung, tmp_path, Path("seed"), name="control-7", signs=7)
    assert (again.name, again.perturb) == ("control-7", 7)
    assert again.records != control.records


def test_a_plan_may_keep_sketches(tmp_path: Path) -> None:
    found = ladder_plan(tmp_path, "paths.native.ladders.debug.workload.captures=sketch")
    rung = resolve(found.ladders[0])[0]
    for spec in (
        reference_spec(found, rung, REFERENCE, tmp_path, Path("seed")),
        control_spec(found, rung, tmp_path, Path("seed")),
    ):
        assert spec.capture == "sketch"
    assert seed_spec(found, rung, tmp_path).capture == "none"


# Whether a reference looks like training


def failing(plan: Plan, *defects: Defect) -> list[str]:
    trial = imagined(plan, "baseline", *defects, captures=True)
    trial = type(trial)(
        trial.spec.model_copy(update={"name": "reference"}), trial.result, trial.records
    )
    return [check.name for check in reference_checks(plan, trial) if not check.passed]


def rerun_of_itself(plan: Plan, trial: Trial) -> list[Check]:
    return rerun_checks(plan, trial, trial)


def test_a_reference_makes_every_check_that_it_owes(plan: Plan) -> None:
    trial = imagined(plan, "baseline")
    names = [
        check.name.replace("baseline:", "reference:") for check in reference_checks(plan, trial)
    ]
    assert names == list(reference_names())
    assert failing(plan) == []


@pytest.mark.parametrize("shift", [0.3, -0.3])
def test_a_first_loss_far_from_random_weights_fails_on_either_side(
    plan: Plan, shift: float
) -> None:
    off = altered(Step, loss=lambda old: old + shift)
    assert failing(plan, off) == ["reference: first loss from ln(vocabulary)"]


def test_the_fall_is_that_from_the_first_loss_to_the_last(plan: Plan) -> None:
    assert failing(plan, altered(Step, step=3, loss=7.9)) == []
    assert failing(plan, altered(Step, step=6, loss=7.63)) == ["reference: fall of the loss"]


def test_a_first_loss_that_is_not_a_number_fails_both(plan: Plan) -> None:
    names = failing(plan, altered(Step, step=1, loss=math.nan))
    near, fall, _ = reference_names()[-3:]
    assert {near, fall} <= set(names)


def test_rows_of_an_earlier_step_fail_wherever_they_come_again(plan: Plan) -> None:
    again = imagined(plan, "baseline").records.steps[1].rows
    for step in (1, 3, LAST):
        assert failing(plan, altered(Step, step=step, rows=again)) == [
            "reference: steps with rows of an earlier step"
        ]


def test_each_step_with_rows_of_an_earlier_one_is_counted(plan: Plan) -> None:
    trial = imagined(plan, "baseline", altered(Step, rows="0" * 32))
    check = reference_checks(plan, trial)[-1]
    assert (check.measured, check.passed) == (LAST - 1, False)
    assert check.detail == "the global batch, first at step 2"
    fine = reference_checks(plan, imagined(plan, "baseline"))[-1]
    assert fine.detail == f"{LAST} steps, each with rows of its own"


def test_ranks_that_are_stuck_are_seen_in_the_rows_of_all_of_them(plan: Plan) -> None:
    both = imagined(plan, "fsdp", altered(Step, rows="0" * 32))
    assert not reference_checks(plan, both)[-1].passed


def test_a_single_rank_that_is_stuck_is_seen_though_the_global_batch_changes(plan: Plan) -> None:
    trial = imagined(plan, "fsdp", altered(Step, rank=1, rows="0" * 32), captures=True)
    assert len({step.rows for step in trial.records.steps}) == LAST
    (check,) = (c for c in reference_checks(plan, trial) if not c.passed)
    assert (check.measured, check.detail) == (LAST - 1, "rank 1, first at step 2")


@pytest.mark.parametrize("checks", [reference_checks, rerun_of_itself])
def test_copies_that_drifted_apart_fail_a_run_that_has_no_other_layout(
    plan: Plan, checks: Callable[[Plan, Trial], list[Check]]
) -> None:
    spoiled = drifted(1, "end", NORM)
    trial = imagined(plan, "fsdp", spoiled, digest_steps=EVERY, captures=True)
    (check,) = (c for c in checks(plan, trial) if not c.passed)
    assert (check.name.partition(": ")[2], check.measured) == ("replicas agree", 1)
    assert check.detail == f"end of {NORM}: rank 1 and rank 0 differ"


def test_ranks_that_only_exchange_their_rows_are_seen(plan: Plan) -> None:
    def exchanged(launch: Launch) -> None:
        ours, theirs = (
            {line.step: line.rows for line in launch.lines[rank] if isinstance(line, Step)}
            for rank in (0, 1)
        )
        for rank, rows in ((0, theirs), (1, ours)):
            launch.lines[rank] = [
                line.model_copy(update={"rows": rows[1]})
                if isinstance(line, Step) and line.step == 2
                else line
                for line in launch.lines[rank]
            ]

    trial = imagined(plan, "fsdp", exchanged, captures=True)
    (check,) = (c for c in reference_checks(plan, trial) if not c.passed)
    assert (check.measured, check.detail) == (1, "the global batch, first at step 2")


def test_a_reference_that_took_no_step_had_no_fresh_rows(plan: Plan) -> None:
    check = reference_checks(plan, imagined(plan, "baseline", without(Step)))[-1]
    assert (check.measured, check.passed) == (1, False)


# Whether the same again is the same


def test_a_rerun_on_the_cpu_is_exact_and_owes_its_state(plan: Plan) -> None:
    first, again = (imagined(plan, "baseline", digest_steps=EVERY, captures=True) for _ in range(2))
    checks = rerun_checks(plan, first, again)
    names = [check.name.replace("baseline:", "rerun:") for check in checks]
    assert names == list(rerun_names(plan))
    assert all(check.passed for check in checks)
    limits = {check.name: check.limit for check in checks}
    assert limits["rerun: loss against the reference"] == 0.0
    assert limits["rerun: grad norm against the reference"] == 0.0


def test_a_rerun_on_an_accelerator_has_limits_and_owes_no_state() -> None:
    plan = neuron_plan()
    assert not [name for name in rerun_names(plan) if "state" in name]
    trial = imagined(plan, "baseline")
    checks = {check.name: check for check in rerun_checks(plan, trial, trial)}
    assert checks["rerun: loss against the reference"].limit == plan.limits.rerun_loss_absolute
    norm = checks["rerun: grad norm against the reference"]
    assert plan.limits.bfloat16 is not None
    assert norm.limit == plan.limits.bfloat16.grad_norm_relative.floor


def test_equal_states_differ_in_nothing(plan: Plan) -> None:
    one, other = (imagined(plan, "fsdp", digest_steps=EVERY) for _ in range(2))
    check = state_check("state", one, other, LAST, LAST)
    assert check.passed
    assert check.detail == "model, optimizer, scheduler, data, rng"


def test_every_rank_and_part_that_differs_is_named(plan: Plan) -> None:
    one = imagined(plan, "fsdp", digest_steps=EVERY)
    other = imagined(
        plan,
        "fsdp",
        other_state("rng", "end", rank=1),
        other_state("data", "end", rank=0),
        digest_steps=EVERY,
    )
    check = state_check("state", one, other, LAST, LAST)
    assert (check.measured, check.passed) == (2, False)
    assert check.detail == "data of rank 0, rng of rank 1"


def test_only_the_parts_that_are_asked_for_have_to_be_equal(plan: Plan) -> None:
    one = imagined(plan, "baseline", digest_steps=EVERY)
    other = imagined(plan, "baseline", other_state("rng", "end"), digest_steps=EVERY)
    assert state_check("state", one, other, LAST, LAST, parts=("model",)).passed
    assert not state_check("state", one, other, LAST, LAST).passed


def test_a_state_at_the_start_is_held_against_one_at_the_end(plan: Plan) -> None:
    one = imagined(plan, "baseline", digest_steps=EVERY)
    assert not state_check("state", one, one, 3, 0, at_start=True).passed
    assert not state_check("state", one, one, 3, 3, at_start=True).passed


def test_a_part_that_neither_side_tells_is_not_equal(plan: Plan) -> None:
    forgetful = altered(State, digests=lambda old: {k: v for k, v in old.items() if k != "data"})
    one, other = (imagined(plan, "baseline", forgetful, digest_steps=EVERY) for _ in range(2))
    check = state_check("state", one, other, LAST, LAST)
    assert not check.passed
    assert check.detail == "data of rank 0"


def test_a_state_that_nobody_told_is_not_equal(plan: Plan) -> None:
    one, other = (imagined(plan, "baseline") for _ in range(2))
    assert not state_check("state", one, other, LAST, LAST).passed
    nobody = imagined(plan, "baseline", lambda launch: launch.lines.clear())
    assert not state_check("state", nobody, nobody, LAST, LAST).passed
