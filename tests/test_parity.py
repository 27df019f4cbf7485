from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.builders import global_step as step
from trn_validate.check import Basis, Check
from trn_validate.folded import GlobalStep
from trn_validate.limits import Deviations
from trn_validate.parity import Limit, Noise, Tolerance, parity_checks, parity_names, worst


def compare(candidate: list[GlobalStep], *, loss: float = 1e-6, norm: float = 1e-4) -> list[Check]:
    return parity_checks(
        "tp",
        [step(number) for number in (1, 2, 3)],
        candidate,
        steps=3,
        loss=Limit(loss),
        grad_norm=Limit(norm),
    )


def failing(checks: list[Check]) -> list[str]:
    return [check.name.removeprefix("tp: ") for check in checks if not check.passed]


def changed(number: int, **changes: Any) -> list[GlobalStep]:
    """Three equal steps, but for one."""
    return [step(n, **(changes if n == number else {})) for n in (1, 2, 3)]


def test_equal_runs_pass_also_with_limits_of_zero() -> None:
    checks = compare(changed(0), loss=0.0, norm=0.0)
    assert failing(checks) == []
    assert [check.name for check in checks] == list(parity_names("tp"))
    assert checks[0].measured == 3


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"tokens": 1023}, "steps with other tokens"),
        ({"rows": "0" * 32}, "steps with other rows"),
        ({"loss": 7.400002}, "loss against the reference"),
        ({"loss": 7.399998}, "loss against the reference"),
        ({"loss": math.inf}, "loss against the reference"),
        ({"loss": math.nan}, "loss against the reference"),
        ({"grad_norm": 0.75}, "grad norm against the reference"),
        ({"grad_norm": 1.5002}, "grad norm against the reference"),
        ({"grad_norm": math.nan}, "grad norm against the reference"),
        ({"grad_norm": -1.5}, "grad norm against the reference"),
    ],
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_step_that_differs_fails_the_check_meant_for_it_wherever_it_is(
    number: int, changes: dict[str, Any], check: str
) -> None:
    if "loss" in changes and math.isfinite(changes["loss"]):
        changes = {"loss": changes["loss"] + 0.1 * (2 - number)}
    assert failing(compare(changed(number, **changes))) == [check]


def test_a_value_on_the_limit_holds_and_one_beyond_it_does_not() -> None:
    exact = changed(2, loss=7.4 + 2**-10)
    distance = abs((7.4 + 2**-10) - (7.6 - 0.1 * 2))
    assert failing(compare(exact, loss=distance)) == []
    assert failing(compare(exact, loss=math.nextafter(distance, 0))) == [
        "loss against the reference"
    ]


def test_a_not_a_number_at_the_first_step_is_not_hidden_by_later_distances() -> None:
    checks = compare([step(1, loss=math.nan), step(2, loss=9.0), step(3)])
    loss = checks[3]
    assert isinstance(loss.measured, float)
    assert math.isnan(loss.measured)
    assert loss.detail == "largest at step 1, first over the limit at step 1"


def test_the_largest_distance_and_the_first_step_over_the_limit_are_named() -> None:
    loss = compare([step(1), step(2, loss=7.5), step(3, loss=8.3)])[3]
    assert loss.measured == pytest.approx(1.0)
    assert loss.detail == (
        "largest at step 3, first over the limit at step 2; it grows with every step"
    )
    assert (loss.unit, loss.source) == ("nats", "config")


@pytest.mark.parametrize(
    ("losses", "grows"),
    [
        ((7.5, 7.5, 7.5), True),
        ((7.51, 7.41, 7.31), False),
        ((7.6, 7.45, 7.4), False),
        ((7.5, 7.4, math.nan), False),
    ],
)
def test_a_distance_that_grows_with_every_step_is_said_to(
    losses: tuple[float, ...], grows: bool
) -> None:
    candidate = [step(number, loss=value) for number, value in enumerate(losses, 1)]
    loss = compare(candidate)[3]
    assert not loss.passed
    assert loss.detail.endswith("; it grows with every step") is grows


def test_the_first_step_with_other_rows_is_named() -> None:
    rows = compare([step(1), step(2, rows="a"), step(3, rows="b")])[2]
    assert (rows.measured, rows.detail) == (2, "first at step 2")


def test_rows_of_two_steps_swapped_are_other_rows() -> None:
    first, second = step(1), step(2)
    swapped = [step(1, rows=second.rows), step(2, rows=first.rows), step(3)]
    assert failing(compare(swapped)) == ["steps with other rows"]


def test_nothing_compared_fails_every_check() -> None:
    assert len(failing(compare([]))) == len(parity_names("tp"))


def test_steps_that_the_reference_does_not_have_are_not_compared() -> None:
    later = [step(number) for number in (4, 5, 6)]
    assert len(failing(compare(later))) == len(parity_names("tp"))


def test_a_step_that_the_candidate_lacks_is_a_difference() -> None:
    checks = compare([step(1), step(3)])
    assert failing(checks) == ["steps compared"]
    assert checks[0].measured == 2


def test_a_reference_whose_gradient_vanished_is_equal_to_nothing() -> None:
    checks = parity_checks(
        "tp",
        [step(1, grad_norm=0.0)],
        [step(1, grad_norm=0.0)],
        steps=1,
        loss=Limit(1.0),
        grad_norm=Limit(0.2),
    )
    assert failing(checks) == ["grad norm against the reference"]


# Limits that follow from a control run


def noise(**changes: float) -> Noise:
    values = {
        "loss_absolute": 1e-6,
        "grad_norm_relative": 2e-6,
        "gradient_relative": 3e-6,
        "parameter_relative": 4e-6,
    }
    return Noise(**(values | changes))


def test_a_limit_that_was_measured_says_so_and_shows_its_basis() -> None:
    basis = Basis(floor=1e-5, factor=5, control=1e-5, ceiling=1e-4)
    checks = parity_checks(
        "tp", [step(1)], [step(1)], steps=1, loss=Limit.of(basis), grad_norm=Limit(1e-4)
    )
    loss, norm = checks[3:]
    assert (loss.limit, loss.source, loss.basis) == (basis.limit, "measured", basis)
    assert (norm.limit, norm.source, norm.basis) == (1e-4, "config", None)


@pytest.mark.parametrize("figure", Noise.__dataclass_fields__)
def test_the_basis_of_a_figure_is_made_of_its_own_bounds_and_control(figure: str) -> None:
    bounds = Deviations.model_validate(
        {
            name: {"floor": 1e-5 * place, "ceiling": 1e-3 * place}
            for place, name in enumerate(Noise.__dataclass_fields__, 1)
        }
    )
    basis = Tolerance(bounds, 7.0, noise()).basis(figure)
    bound = getattr(bounds, figure)
    assert (basis.floor, basis.ceiling) == (bound.floor, bound.ceiling)
    assert (basis.factor, basis.control) == (7.0, getattr(noise(), figure))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("figure", Noise.__dataclass_fields__)
def test_no_limit_follows_from_noise_that_is_no_number(figure: str, value: float) -> None:
    bounds = Deviations.model_validate(
        {name: {"floor": 1e-5, "ceiling": 1e-3} for name in Noise.__dataclass_fields__}
    )
    with pytest.raises(ValidationError, match="control"):
        Tolerance(bounds, 5.0, noise(**{figure: value})).basis(figure)


def test_of_two_noises_the_larger_counts_in_each_figure() -> None:
    one = noise(loss_absolute=9.0, gradient_relative=9.0)
    both = one.and_also(noise(parameter_relative=8.0))
    assert both == noise(loss_absolute=9.0, gradient_relative=9.0, parameter_relative=8.0)
    assert both == noise(parameter_relative=8.0).and_also(one)


@pytest.mark.parametrize("figure", Noise.__dataclass_fields__)
def test_noise_that_is_not_a_number_is_not_hidden_by_one_that_is(figure: str) -> None:
    bad = noise(**{figure: math.nan})
    for both in (bad.and_also(noise()), noise().and_also(bad)):
        assert math.isnan(getattr(both, figure))


@given(st.lists(st.tuples(st.floats(), st.integers(1, 9)), max_size=6))
def test_the_worst_distance_is_never_one_that_a_limit_forgives_wrongly(
    found: list[tuple[float, int]],
) -> None:
    value, at = worst(found)
    if not found:
        assert value == math.inf
    elif any(math.isnan(v) for v, _ in found):
        assert math.isnan(value)
    else:
        assert (value, at) in found
        assert all(value >= v for v, _ in found)
