from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import ladder_of
from tests.fake_captures import SHAPES
from tests.fake_training import (
    PARAMETERS,
    Defect,
    altered,
    bent,
    carried_out,
    doubled,
    drifted,
    lacking,
    unwritten,
    without,
)
from trn_validate.check import Check
from trn_validate.comparison import (
    Yardstick,
    comparison_checks,
    comparison_names,
    yardstick,
)
from trn_validate.config import Plan
from trn_validate.control import tolerance_of
from trn_validate.errors import MeasurementError
from trn_validate.launching import Trial
from trn_validate.parity import Noise
from trn_validate.records import Closing, Header, Step
from trn_validate.spec import Degrees

NAMES = list(SHAPES)
# As a real run on the CPU in float32 measured them.
NOISE = Noise(
    loss_absolute=4.8e-7,
    grad_norm_relative=1.4e-6,
    gradient_relative=2.6e-6,
    parameter_relative=2.1e-3,
)
RUNGS: list[dict[str, Any]] = [
    {"name": "baseline"},
    {"name": "ddp", "extends": "baseline", "dp_replicate": 2},
    {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
    {"name": "tp", "extends": "fsdp", "tp": 2},
    {"name": "hsdp", "extends": "fsdp", "dp_replicate": 2},
    {"name": "cp", "extends": "fsdp", "cp": 2},
    {"name": "pp", "extends": "baseline", "pp": 2},
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("plan"), RUNGS, seq_len=512)


@pytest.fixture(scope="module")
def reference(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("reference")
    return carried_out(folder, plan, "baseline", called="reference", keep_start=True)


@pytest.fixture
def ours(reference: Trial) -> Yardstick:
    return yardstick(reference, NOISE)


def failing(checks: list[Check]) -> list[str]:
    return [check.name.partition(": ")[2] for check in checks if not check.passed]


def test_a_yardstick_holds_what_the_run_did_and_how_far_rounding_moves_it(ours: Yardstick) -> None:
    assert [step.step for step in ours.steps] == [1, 2, 3, 4, 5, 6]
    assert ours.parameters == PARAMETERS
    assert ours.noise == NOISE
    assert ours.kept.start is not None
    assert [name for name, _ in ours.kept.start.tensors()] == NAMES


@pytest.mark.parametrize("rung", [rung["name"] for rung in RUNGS])
def test_a_layout_that_trains_as_the_reference_does_passes_everything(
    plan: Plan, ours: Yardstick, tmp_path: Path, rung: str
) -> None:
    checks = comparison_checks(plan, ours, carried_out(tmp_path, plan, rung))
    assert tuple(check.name for check in checks) == comparison_names(rung)
    assert failing(checks) == []


CAUGHT: dict[str, Defect] = {
    "ranks that finished": without(Closing, rank=1),
    "steps": without(Step, step=4),
    "numbers that are not finite": altered(Step, step=3, loss=math.nan),
    "device": altered(Header, rank=1, parameter_device="cuda"),
    "communication backend": altered(Header, rank=1, comm_backend="mpi"),
    "degrees": altered(Header, degrees=Degrees(dp_replicate=2)),
    "parameters": altered(Header, parameters=PARAMETERS + 1),
    "tokens per step": altered(Step, step=2, tokens=1),
    "ranks agree": altered(Step, rank=1, step=3, grad_norm=lambda old: 1.001 * old),
    "steps compared": without(Step, step=4),
    "steps with other tokens": altered(Step, step=2, tokens=1),
    "steps with other rows": altered(Step, step=2, rows="0" * 32),
    "loss against the reference": altered(Step, step=4, loss=lambda old: old + 6e-6),
    "grad norm against the reference": altered(Step, step=4, grad_norm=lambda old: 1.0002 * old),
    "parameters compared": lacking("end", NAMES[3]),
    "replicas agree": drifted(1, "end", NAMES[2]),
    "weights at the start": bent("start", doubled, NAMES[2]),
    "gradient of step 1": bent("gradient", doubled),
    "parameters after the last step": bent("end", lambda a: a + np.float32(0.01), NAMES[6]),
}
ALSO: dict[str, list[str]] = {
    "steps": ["steps compared"],
    "steps compared": ["steps"],
    "numbers that are not finite": ["loss against the reference"],
    "tokens per step": ["steps with other tokens"],
    "steps with other tokens": ["tokens per step"],
    "parameters compared": ["parameters after the last step"],
}
"""What has to fail with it, since it is a part of the same question."""


def test_there_is_a_defect_here_for_every_check() -> None:
    parts = [name.partition(": ")[2] for name in comparison_names("fsdp")]
    assert sorted(CAUGHT) == sorted(parts)


@pytest.mark.parametrize("part", CAUGHT)
def test_a_defect_fails_the_check_meant_for_it_and_no_other(
    plan: Plan, ours: Yardstick, tmp_path: Path, part: str
) -> None:
    checks = comparison_checks(plan, ours, carried_out(tmp_path, plan, "fsdp", CAUGHT[part]))
    assert set(failing(checks)) == {part, *ALSO.get(part, [])}


def test_gradients_that_are_halved_leave_losses_and_are_seen_all_the_same(
    plan: Plan, ours: Yardstick, tmp_path: Path
) -> None:
    halved = bent("gradient", lambda a: a / 2)
    checks = comparison_checks(plan, ours, carried_out(tmp_path, plan, "fsdp", halved))
    assert failing(checks) == ["gradient of step 1"]
    detail = next(check.detail for check in checks if not check.passed)
    assert detail.endswith("every parameter: a constant factor of 0.5")


@pytest.mark.parametrize(
    ("part", "figure"),
    [
        ("loss against the reference", "loss_absolute"),
        ("grad norm against the reference", "grad_norm_relative"),
        ("gradient of step 1", "gradient_relative"),
        ("parameters after the last step", "parameter_relative"),
    ],
)
def test_each_limit_follows_from_the_noise_of_its_own_figure(
    plan: Plan, reference: Trial, tmp_path: Path, part: str, figure: str
) -> None:
    noise = Noise(2e-5, 3e-4, 4e-5, 5e-3)
    trial = carried_out(tmp_path, plan, "fsdp")
    checks = {
        check.name: check for check in comparison_checks(plan, yardstick(reference, noise), trial)
    }
    check = checks[f"fsdp: {part}"]
    assert check.basis == tolerance_of(plan, "float32", noise).basis(figure)
    assert check.basis is not None
    assert check.basis.control == getattr(noise, figure)
    assert check.limit == 5 * getattr(noise, figure)
    assert sum(one.source == "measured" for one in checks.values()) == 4


def test_a_launch_that_kept_nothing_fails_by_all_that_was_to_be_kept(
    plan: Plan, ours: Yardstick, tmp_path: Path
) -> None:
    checks = comparison_checks(plan, ours, carried_out(tmp_path, plan, "fsdp", capture="none"))
    assert failing(checks) == [
        "parameters compared",
        "replicas agree",
        "weights at the start",
        "gradient of step 1",
        "parameters after the last step",
    ]


@pytest.mark.parametrize("moment", ["gradient", "end"])
def test_a_launch_that_left_no_file_could_not_be_measured(
    plan: Plan, ours: Yardstick, tmp_path: Path, moment: str
) -> None:
    trial = carried_out(tmp_path, plan, "fsdp", unwritten(moment))
    with pytest.raises(MeasurementError, match=f"{moment}.stage-0.safetensors: no file of tensors"):
        comparison_checks(plan, ours, trial)


def test_a_run_may_stand_on_the_start_of_another_that_has_its_tensors(
    plan: Plan, ours: Yardstick, tmp_path: Path
) -> None:
    accepted = yardstick(carried_out(tmp_path / "accepted", plan, "fsdp"), NOISE)
    again = carried_out(tmp_path / "again", plan, "fsdp")
    assert failing(comparison_checks(plan, accepted.starting_from(ours), again)) == []
    # By itself it kept no tensors of the start to measure a change from.
    with pytest.raises(MeasurementError, match="no file of tensors"):
        comparison_checks(plan, accepted, again)
