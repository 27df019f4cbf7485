from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import ROOT, load_plan, raw_plan
from tests.fake_captures import SHAPES, Keeps
from tests.fake_training import (
    Defect,
    altered,
    bent,
    carried_out,
    forgotten,
    lacking,
    unwritten,
    without,
)
from trn_validate import plan as plans
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.control import (
    CONTROL,
    MEASURES,
    control_checks,
    control_names,
    measured_noise,
    noise_between,
    noise_measures,
    tolerance_of,
)
from trn_validate.errors import MeasurementError
from trn_validate.launching import Trial
from trn_validate.parity import Noise
from trn_validate.records import Closing, Header, Step
from trn_validate.tensors import REPLICAS

NAMES = list(SHAPES)
ROWS, MOVED, EFFECT = (
    "steps with other rows",
    "weights that were not moved",
    "effect on the gradient",
)
LOSS, NORM, GRADIENT, END = (
    f"noise of the {what}"
    for what in ("loss", "grad norm", "gradient of step 1", "parameters after the last step")
)
QUIET = Noise(0.0, 0.0, 1e-6, 1e-6)
FIGURES = list(zip(Noise.__dataclass_fields__, (LOSS, NORM, GRADIENT, END), strict=True))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return load_plan(tmp_path_factory.mktemp("plan"), raw=raw_plan())


@pytest.fixture(scope="module")
def reference(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("reference")
    return carried_out(folder, plan, "baseline", called="reference", keep_start=True)


@pytest.fixture
def make(plan: Plan, tmp_path: Path) -> Callable[..., Trial]:
    """Makes a control with defects."""

    def made(*defects: Defect, **changes: Any) -> Trial:
        return carried_out(
            tmp_path, plan, "baseline", *defects, **({"called": CONTROL, "perturb": 1} | changes)
        )

    return made


def judge(plan: Plan, reference: Trial, control: Trial, noise: Noise | None = None) -> list[Check]:
    apart = noise_between(reference, control)
    return control_checks(plan, reference, control, apart=apart, noise=noise or apart)


def failing(checks: list[Check]) -> list[str]:
    return [check.name.removeprefix(f"{CONTROL}: ") for check in checks if not check.passed]


def unmoved(reference: Trial, moment: str, *names: str) -> Defect:
    """A defect in which these parameters are what they are in the reference."""
    plain = Keeps.of(reference.spec).arrays[moment]

    def apply(launch: Any) -> None:
        launch.keeps.arrays[moment].update({name: plain[name] for name in names or plain})

    return apply


def test_a_control_that_rounding_alone_moved_passes(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    checks = judge(plan, reference, make())
    assert tuple(check.name for check in checks) == control_names()
    assert failing(checks) == []


# What it measures


def test_noise_is_the_distance_of_the_control_in_each_figure(
    reference: Trial, make: Callable[..., Trial]
) -> None:
    control = make(
        altered(Step, step=4, loss=lambda old: old + 3e-6),
        altered(Step, step=2, grad_norm=lambda old: old * (1 - 2e-5)),
        bent("gradient", lambda a: a * np.float32(1.0005), NAMES[1]),
        bent("end", lambda a: a + np.float32(0.01), NAMES[5]),
    )
    noise = noise_between(reference, control)
    assert noise.loss_absolute == pytest.approx(3e-6)
    assert noise.grad_norm_relative == pytest.approx(2e-5)
    assert noise.gradient_relative == pytest.approx(5e-4, rel=0.01)
    kept = Keeps.of(reference.spec).arrays
    change = np.float64(kept["end"][NAMES[5]]) - np.float64(kept["start"][NAMES[5]])
    expected = 0.02 / float(np.linalg.norm(change))
    assert noise.parameter_relative == pytest.approx(expected, rel=1e-3)


def test_a_run_is_at_no_distance_from_itself(reference: Trial) -> None:
    assert noise_between(reference, reference) == Noise(0.0, 0.0, 0.0, 0.0)


def test_noise_of_what_was_not_kept_is_infinite(
    reference: Trial, make: Callable[..., Trial]
) -> None:
    assert noise_between(reference, make(without(Step), capture="none")) == Noise(
        math.inf, math.inf, math.inf, math.inf
    )


@pytest.mark.parametrize("moment", ["gradient", "end"])
def test_a_control_whose_file_is_gone_could_not_be_measured(
    reference: Trial, make: Callable[..., Trial], moment: str
) -> None:
    with pytest.raises(MeasurementError, match=f"{moment}.stage-0.safetensors: no file of tensors"):
        noise_between(reference, make(unwritten(moment)))


def test_noise_is_kept_in_the_measures_of_a_verdict_and_read_back() -> None:
    noise = Noise(1e-6, 2e-6, 3e-6, 4e-3)
    measures = noise_measures(noise)
    assert set(measures) == set(MEASURES.values())
    assert all(name.startswith("control_") for name in measures)
    assert measured_noise(measures | {"tokens_per_second": 3.0}) == noise
    assert noise_measures(Noise(0.0, 0.0, 0.0, 0.0)).keys() == measures.keys()
    assert measured_noise(noise_measures(Noise(0.0, 0.0, 0.0, 0.0))) == Noise(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("missing", MEASURES.values())
def test_noise_with_a_figure_missing_is_none(missing: str) -> None:
    measures = noise_measures(QUIET)
    del measures[missing]
    assert measured_noise(measures) is None


# Whether it is a control


def test_a_control_that_moved_nothing_is_none(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    checks = judge(plan, reference, make(perturb=0))
    assert failing(checks) == [MOVED, EFFECT]
    moved = next(check for check in checks if check.name.endswith(MOVED))
    assert (moved.measured, moved.detail) == (7, f"first {NAMES[0]}")


@pytest.mark.parametrize("name", NAMES)
def test_a_single_weight_that_was_not_moved_is_named(
    plan: Plan, reference: Trial, make: Callable[..., Trial], name: str
) -> None:
    checks = judge(plan, reference, make(unmoved(reference, "start", name)))
    assert failing(checks) == [MOVED]
    moved = next(check for check in checks if check.name.endswith(MOVED))
    assert (moved.measured, moved.detail) == (1, f"first {name}")


def test_a_weight_that_is_zero_has_no_last_place_to_move_by(
    plan: Plan, make: Callable[..., Trial], tmp_path: Path
) -> None:
    zero = bent("start", np.zeros_like, NAMES[2])
    folder = tmp_path / "other"
    ours = carried_out(folder, plan, "baseline", zero, called="reference", keep_start=True)
    assert failing(judge(plan, ours, make(zero))) == []


def test_a_weight_of_which_nothing_is_known_counts_as_not_moved(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    assert failing(judge(plan, reference, make(lacking("start", NAMES[3])))) == [MOVED]


def test_a_control_of_which_no_start_is_known_moved_nothing(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    assert failing(judge(plan, reference, make(forgotten("start", 0)))) == [REPLICAS, MOVED]


def test_a_reference_of_which_no_start_is_known_cannot_show_that_anything_moved(
    plan: Plan, make: Callable[..., Trial], tmp_path: Path
) -> None:
    ours = carried_out(
        tmp_path / "other", plan, "baseline", forgotten("start", 0), called="reference"
    )
    assert failing(judge(plan, ours, make())) == [MOVED, END]


def test_a_control_that_moved_weights_and_no_gradient_measures_nothing(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    checks = judge(plan, reference, make(unmoved(reference, "gradient")))
    assert failing(checks) == [EFFECT]


def test_the_noise_of_a_rerun_does_not_stand_in_for_an_effect_of_the_control(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    control = make(unmoved(reference, "gradient"))
    assert failing(judge(plan, reference, control, noise=QUIET)) == [EFFECT]


def test_a_control_with_other_rows_is_no_control(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    checks = judge(plan, reference, make(altered(Step, step=3, rows="0" * 32)))
    assert failing(checks) == [ROWS]
    rows = next(check for check in checks if check.name.endswith(ROWS))
    assert (rows.measured, rows.detail) == (1, "first at step 3")


def test_a_control_that_took_no_step_passes_nothing_of_this(
    plan: Plan, reference: Trial, make: Callable[..., Trial]
) -> None:
    names = failing(judge(plan, reference, make(without(Step))))
    assert {"steps", ROWS, MOVED, EFFECT, LOSS, NORM, GRADIENT, END} <= set(names)


def test_steps_of_a_control_that_the_reference_does_not_have_are_other_steps(
    plan: Plan, make: Callable[..., Trial], tmp_path: Path
) -> None:
    ours = carried_out(
        tmp_path / "other", plan, "baseline", called="reference", keep_start=True, steps=5
    )
    names = failing(judge(plan, ours, make()))
    assert ROWS in names


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (without(Closing), "ranks that finished"),
        (altered(Header, parameter_device="cuda"), "device"),
        (altered(Header, parameters=1), "parameters"),
        (altered(Header, accumulation=2), "degrees"),
        (altered(Step, step=2, tokens=1), "tokens per step"),
    ],
)
def test_a_control_owes_what_every_launch_owes(
    plan: Plan, reference: Trial, make: Callable[..., Trial], defect: Defect, check: str
) -> None:
    assert failing(judge(plan, reference, make(defect))) == [check]


# Whether it is quiet enough


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        pytest.param(altered(Step, step=5, loss=lambda old: old + 6e-5), LOSS, id="loss"),
        pytest.param(altered(Step, step=5, grad_norm=lambda old: old * 1.002), NORM, id="norm"),
        pytest.param(
            bent("gradient", lambda a: a * np.float32(1.0002), NAMES[4]), GRADIENT, id="gradient"
        ),
        pytest.param(bent("end", lambda a: a + np.float32(0.01), NAMES[4]), END, id="parameter"),
    ],
)
def test_a_control_that_is_too_noisy_to_judge_by_fails_by_the_figure_that_is(
    plan: Plan, reference: Trial, make: Callable[..., Trial], defect: Defect, check: str
) -> None:
    checks = judge(plan, reference, make(defect))
    assert failing(checks) == [check]
    noisy = next(one for one in checks if not one.passed)
    assert noisy.source == "config"
    assert "too noisy" in noisy.detail


@pytest.mark.parametrize(
    ("figure", "check"),
    FIGURES,
)
def test_a_control_at_its_ceiling_fails_and_one_just_below_does_not(
    plan: Plan, reference: Trial, make: Callable[..., Trial], figure: str, check: str
) -> None:
    assert plan.limits.float32 is not None
    ceiling = getattr(plan.limits.float32, figure).ceiling
    control = make()
    for value, names in ((ceiling, [check]), (math.nextafter(ceiling, 0), [])):
        noise = replace(QUIET, **{figure: value})
        assert failing(judge(plan, reference, control, noise)) == names


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("figure", "check"),
    FIGURES,
)
def test_noise_that_is_no_number_is_never_quiet(
    plan: Plan,
    reference: Trial,
    make: Callable[..., Trial],
    figure: str,
    check: str,
    value: float,
) -> None:
    noise = replace(QUIET, **{figure: value})
    assert failing(judge(plan, reference, make(), noise)) == [check]


def test_the_dtype_decides_which_bounds_hold() -> None:
    plan = plans.load(ROOT / "configs/cpu.yaml")
    noise = Noise(0.0, 0.0, 0.0, 0.0)
    for dtype in ("float32", "bfloat16"):
        tolerance = tolerance_of(plan, dtype, noise)
        assert tolerance.bounds == getattr(plan.limits, dtype)
        assert tolerance.factor == {"float32": 5.0, "bfloat16": 1.5}[dtype]
    assert plan.limits.float32 != plan.limits.bfloat16
