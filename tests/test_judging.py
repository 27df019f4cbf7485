from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ladder_of, load_plan, raw_deviations, raw_plan
from tests.fake_training import PARAMETERS, Defect, altered, imagined, imagined_ranks, without
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.judging import common_checks, common_names
from trn_validate.launching import Trial
from trn_validate.records import Header, Step
from trn_validate.spec import Degrees

RUNGS: list[dict[str, Any]] = [
    {"name": "baseline"},
    {"name": "ddp", "extends": "baseline", "dp_replicate": 2},
    {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
    {"name": "hsdp", "extends": "fsdp", "dp_replicate": 2},
    {"name": "tp", "extends": "fsdp", "tp": 2},
    {"name": "cp", "extends": "tp", "cp": 2},
    {"name": "pp", "extends": "cp", "pp": 2},
]
NAMES = [rung["name"] for rung in RUNGS]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("plan"), RUNGS, seq_len=512)


def failing(plan: Plan, trial: Trial) -> list[str]:
    checks = common_checks(plan, trial, parameters=PARAMETERS)
    return [c.name.removeprefix(f"{trial.spec.name}: ") for c in checks if not c.passed]


def check_of(plan: Plan, trial: Trial, name: str) -> Check:
    checks = common_checks(plan, trial, parameters=PARAMETERS)
    return next(check for check in checks if check.name == f"{trial.spec.name}: {name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_launch_owes_nothing(plan: Plan, name: str) -> None:
    trial = imagined(plan, name)
    checks = common_checks(plan, trial, parameters=PARAMETERS)
    assert [check.name for check in checks] == list(common_names(name))
    assert failing(plan, trial) == []


def test_ranks_that_share_samples_and_saw_others_are_named(plan: Plan) -> None:
    trial = imagined(plan, "tp", altered(Step, rank=1, step=2, rows="0" * 32))
    second = trial.records.steps[1]
    assert second.split == "ranks 0 and 1"
    check = check_of(plan, trial, "ranks agree")
    assert check.measured == math.inf
    assert check.detail == "ranks 0 and 1 share samples but saw other rows at step 2"


def test_ranks_of_different_data_may_see_different_rows(plan: Plan) -> None:
    trial = imagined(plan, "fsdp")
    rows = {record.steps[0].rows for record in imagined_ranks(plan, "fsdp").values()}
    assert len(rows) == 2
    assert failing(plan, trial) == []


@pytest.mark.parametrize(
    ("defect", "names"),
    [
        (without(Step, step=6), ["steps"]),
        (without(Step, rank=3, step=6), ["steps"]),
        (lambda launch: launch.lines[2].pop(), ["ranks that finished"]),
        (altered(Header, rank=1, parameter_device="meta"), ["device"]),
        (altered(Header, rank=3, comm_backend="fake"), ["communication backend"]),
        (altered(Header, degrees=Degrees(dp_shard=4)), ["degrees"]),
        (altered(Header, rank=2, accumulation=2), ["degrees"]),
        (altered(Header, parameters=1), ["parameters"]),
        (altered(Step, step=2, tokens=1), ["tokens per step"]),
        (altered(Step, rank=2, loss=lambda old: old + 1e-5), ["ranks agree"]),
        (altered(Step, rank=2, grad_norm=lambda old: old * 1.01), ["ranks agree"]),
        (altered(Step, step=3, loss=math.inf), ["numbers that are not finite"]),
    ],
)
def test_each_check_fails_alone_by_what_it_is_meant_for(
    plan: Plan, defect: Defect, names: list[str]
) -> None:
    assert failing(plan, imagined(plan, "tp", defect)) == names


def test_a_launch_without_any_rank_fails_all_but_what_it_could_not_get_wrong(plan: Plan) -> None:
    trial = imagined(plan, "fsdp", lambda launch: launch.lines.clear())
    parts = {name.removeprefix("fsdp: ") for name in common_names("fsdp")}
    assert parts - set(failing(plan, trial)) == {"numbers that are not finite"}


def test_a_reference_with_no_parameters_does_not_pass_against_itself(plan: Plan) -> None:
    trial = imagined(plan, "baseline", altered(Header, parameters=0))
    checks = {check.name: check for check in common_checks(plan, trial)}
    assert not checks["baseline: parameters"].passed


def test_a_reference_may_have_as_many_parameters_as_it_has(plan: Plan) -> None:
    checks = common_checks(plan, imagined(plan, "baseline"))
    assert all(check.passed for check in checks)


def test_the_first_step_with_other_tokens_is_named(plan: Plan) -> None:
    trial = imagined(plan, "fsdp", altered(Step, step=4, tokens=7))
    check = check_of(plan, trial, "tokens per step")
    assert (check.measured, check.limit, check.detail) == (14, 2048, "step 4")


def test_a_difference_of_gradient_norms_is_named_with_its_step(plan: Plan) -> None:
    trial = imagined(plan, "tp", altered(Step, rank=1, step=5, grad_norm=lambda old: 2 * old))
    assert check_of(plan, trial, "ranks agree").detail == "grad norms differ by 1.0e+00 at step 5"


def test_nothing_is_written_to_judge_an_imagined_launch(plan: Plan) -> None:
    imagined(plan, "baseline")
    assert not Path("unwritten").exists()


# Ranks agree within the floors of the dtype that they compute in


def test_ranks_agree_within_the_floor_of_the_dtype_that_they_compute_in(tmp_path: Path) -> None:
    raw = raw_plan()
    ladder = raw["paths"]["native"]["ladders"][0]
    ladder["workload"]["compute_dtype"] = "bfloat16"
    ladder["rungs"] = RUNGS[:3]
    wide = {"loss_absolute": {"floor": 2e-3, "ceiling": 2e-2}}
    raw["limits"]["bfloat16"] = raw_deviations() | wide
    found = load_plan(tmp_path, raw=raw)
    off = altered(Step, rank=1, loss=lambda old: old + 1e-3)
    check = check_of(found, imagined(found, "fsdp", off), "ranks agree")
    assert (check.limit, check.source, check.passed) == (2e-3, "config", True)
    far = altered(Step, rank=1, loss=lambda old: old + 3e-3)
    assert failing(found, imagined(found, "fsdp", far)) == ["ranks agree"]
