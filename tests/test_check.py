from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.builders import check
from trn_validate.check import Basis, Check, Comparator, holds

COMPARATORS: tuple[Comparator, ...] = get_args(Comparator)
NUMERIC: dict[Comparator, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
NON_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("comparator", COMPARATORS)
@pytest.mark.parametrize(("measured", "limit"), [(1, 2), (2, 1), (1, 1), (0.5, 1), (1.0, 1)])
def test_finite_numbers_are_compared_as_the_comparator_says(
    comparator: Comparator, measured: float, limit: float
) -> None:
    assert holds(measured, comparator, limit) is NUMERIC[comparator](measured, limit)


def test_every_comparator_is_tried_here() -> None:
    assert set(NUMERIC) == set(COMPARATORS)


@pytest.mark.parametrize("comparator", COMPARATORS)
@pytest.mark.parametrize("measured", NON_FINITE)
@pytest.mark.parametrize("limit", [0, 1.0, -1.0, 10**400, "NaN", ""])
def test_a_number_that_is_not_finite_holds_in_no_relation(
    comparator: Comparator, measured: float, limit: float | str
) -> None:
    assert holds(measured, comparator, limit) is False
    if limit != "NaN":  # which is a limit that is not finite, and refused
        assert check(measured=measured, comparator=comparator, limit=limit).passed is False


@pytest.mark.parametrize("comparator", COMPARATORS)
@pytest.mark.parametrize(("measured", "limit"), [("1", 1), (1, "1"), ("", 0), (0, ""), (1.0, "1")])
def test_a_number_is_never_compared_with_a_text(
    comparator: Comparator, measured: float | str, limit: float | str
) -> None:
    assert holds(measured, comparator, limit) is False


@pytest.mark.parametrize(
    ("measured", "comparator", "limit", "expected"),
    [
        ("neuron", "==", "neuron", True),
        ("cpu", "==", "neuron", False),
        ("cpu", "!=", "neuron", True),
        ("neuron", "!=", "neuron", False),
        ("a", "<", "b", False),
        ("a", "<=", "a", False),
        ("b", ">", "a", False),
        ("a", ">=", "a", False),
    ],
)
def test_texts_are_equal_or_not_and_have_no_order(
    measured: str, comparator: Comparator, limit: str, expected: bool
) -> None:
    assert holds(measured, comparator, limit) is expected


@given(
    measured=st.integers() | st.floats(allow_nan=True, allow_infinity=True),
    limit=st.integers() | st.floats(allow_nan=False, allow_infinity=False),
)
def test_no_two_comparators_that_exclude_each_other_hold_at_once(
    measured: float, limit: float
) -> None:
    held = [comparator for comparator in COMPARATORS if holds(measured, comparator, limit)]
    for one, other in (("<=", ">"), ("<", ">="), ("==", "!=")):
        finite = not isinstance(measured, float) or math.isfinite(measured)
        assert ((one in held) != (other in held)) is finite


def test_numbers_of_any_size_are_compared_without_loss() -> None:
    assert holds(2**53 + 1, ">", float(2**53))
    assert holds(10**400, ">", 1.5)


@pytest.mark.parametrize("limit", [*NON_FINITE, "NaN", "Infinity", "-Infinity"])
def test_a_limit_that_is_not_finite_is_refused(limit: float | str) -> None:
    with pytest.raises(ValidationError, match="a limit has to be finite"):
        check(limit=limit)


@pytest.mark.parametrize("missing", ["name", "measured", "comparator", "limit", "source"])
def test_a_check_without_one_of_its_parts_is_refused(missing: str) -> None:
    values = {k: v for k, v in check().model_dump().items() if k not in (missing, "passed")}
    with pytest.raises(ValidationError, match=missing):
        Check(**values)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"measured": True},
        {"measured": None},
        {"limit": True},
        {"limit": None},
        {"comparator": "=<"},
        {"source": "guess"},
        {"passed": True},
        {"tolerance": 1.0},
    ],
)
def test_a_check_with_a_wrong_part_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check(**changes)


def test_whether_a_check_passed_cannot_be_set() -> None:
    failed = check(measured=2.0)
    assert failed.passed is False
    with pytest.raises((ValidationError, AttributeError)):
        failed.passed = True  # type: ignore[misc]  # what is tried here
    assert failed.model_copy(update={"passed": True}).model_dump()["passed"] is False


@pytest.mark.parametrize(
    ("measured", "written"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_a_number_that_is_not_finite_is_written_as_a_text_and_read_back(
    measured: float, written: str
) -> None:
    values = json.loads(check(measured=measured).model_dump_json())
    assert values.pop("passed") is False
    assert values["measured"] == written
    again = Check.model_validate_json(json.dumps(values))
    assert isinstance(again.measured, float)
    assert str(again.measured) == str(measured)


@pytest.mark.parametrize("measured", [5, 5.0, 0.1, "5"])
def test_a_measured_value_keeps_its_type(measured: float | str) -> None:
    values = json.loads(check(measured=measured).model_dump_json())
    values.pop("passed")
    again = Check.model_validate_json(json.dumps(values)).measured
    assert (again, type(again)) == (measured, type(measured))


def test_a_check_reads_as_a_sentence() -> None:
    made = check(name="loss", measured=0.25, limit=0.5, unit="nats", detail="step 3")
    assert str(made) == "loss: 0.25 nats <= 0.5 nats (step 3)"
    assert str(check(name="ranks", measured=2, comparator="==", limit=2)) == "ranks: 2 == 2"


# Limits that were measured


def basis(**changes: float) -> Basis:
    values = {"floor": 1e-5, "factor": 5.0, "control": 1e-6, "ceiling": 1e-4}
    return Basis(**(values | changes))


def measured(found: Basis, **changes: Any) -> Check:
    return check(**({"source": "measured", "basis": found, "limit": found.limit} | changes))


@pytest.mark.parametrize(
    ("control", "limit"), [(0.0, 1e-5), (1e-6, 1e-5), (2e-6, 1e-5), (4e-6, 2e-5), (1.0, 5.0)]
)
def test_a_measured_limit_is_so_many_times_the_control_and_never_below_the_floor(
    control: float, limit: float
) -> None:
    assert basis(control=control).limit == pytest.approx(limit, rel=1e-12)
    assert measured(basis(control=control)).limit == basis(control=control).limit


@pytest.mark.parametrize("limit", [1e-4, math.nextafter(1e-5, 1), math.nextafter(1e-5, 0), 0, "no"])
def test_a_limit_that_does_not_follow_from_its_basis_is_refused(limit: float | str) -> None:
    with pytest.raises(ValidationError, match="its basis gives 1e-05"):
        measured(basis(), limit=limit)


def test_a_measured_limit_without_its_basis_is_refused() -> None:
    with pytest.raises(ValidationError, match="a measured limit names its basis"):
        check(source="measured")


@pytest.mark.parametrize("source", ["config", "derived"])
def test_a_limit_that_was_not_measured_has_no_basis(source: str) -> None:
    with pytest.raises(ValidationError, match="and no other has one"):
        measured(basis(), source=source)


@pytest.mark.parametrize("name", Basis.model_fields)
@pytest.mark.parametrize("value", [*NON_FINITE, -1e-9])
def test_a_basis_holds_finite_numbers_that_are_not_negative(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        basis(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("floor", 0.0), ("ceiling", 0.0), ("factor", 0.99), ("factor", 0.0)]
)
def test_a_basis_that_would_allow_nothing_or_less_than_the_noise_is_refused(
    name: str, value: float
) -> None:
    with pytest.raises(ValidationError, match=name):
        basis(**{name: value})


@given(
    floor=st.floats(1e-12, 1e3),
    factor=st.floats(1, 100),
    control=st.floats(0, 1e3),
)
def test_a_measured_limit_still_follows_after_it_was_written_and_read(
    floor: float, factor: float, control: float
) -> None:
    made = measured(basis(floor=floor, factor=factor, control=control), measured=0.5)
    values = json.loads(made.model_dump_json())
    values.pop("passed")
    assert Check.model_validate_json(json.dumps(values)) == made


def test_a_limit_that_was_changed_in_its_file_is_refused() -> None:
    values = json.loads(measured(basis(), measured=3e-5).model_dump_json())
    assert values.pop("passed") is False
    with pytest.raises(ValidationError, match="its basis gives"):
        Check.model_validate_json(json.dumps(values | {"limit": 1.0}))


@pytest.mark.parametrize("value", NON_FINITE)
def test_a_distance_that_is_not_finite_is_within_no_measured_limit(value: float) -> None:
    assert measured(basis(), measured=value, comparator="<=").passed is False
    assert measured(basis(), measured=1e-5, comparator="<=").passed is True
