from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import ladder_of
from tests.fake_captures import SHAPES, written
from tests.fake_training import (
    carried_out,
)
from trn_validate.captures import Capture, read_capture
from trn_validate.config import Plan
from trn_validate.deviations import (
    FLOOR,
    Deviation,
    gradient_deviations,
    parameter_deviations,
    rows_that_differ,
)
from trn_validate.launching import Trial

NAMES = list(SHAPES)


RUNGS = [
    {"name": "baseline"},
    {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
    {"name": "pp", "extends": "fsdp", "pp": 2},
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("plan"), RUNGS)


def gradients(trial: Trial) -> Capture:
    found = read_capture(trial.records, trial.captures, "gradient")
    assert found is not None
    return found


def by_name(deviations: tuple[Deviation, ...]) -> dict[str, Deviation]:
    found = {deviation.name: deviation for deviation in deviations}
    assert len(found) == len(deviations)
    return found


# Distances of gradients


def pair(tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[Capture, Capture]:
    return written(tmp_path / "ours", ours), written(tmp_path / "theirs", theirs)


def deviation(tmp_path: Path, ours: Any, theirs: Any) -> Deviation:
    (found,) = gradient_deviations(*pair(tmp_path, {"a": ours}, {"a": theirs}))
    return found


def test_equal_gradients_are_at_no_distance(plan: Plan, tmp_path: Path) -> None:
    found = gradients(carried_out(tmp_path, plan, "baseline"))
    deviations = gradient_deviations(found, found)
    assert [d.name for d in deviations] == NAMES
    assert {(d.relative, d.factor) for d in deviations} == {(0.0, 1.0)}


def test_the_same_gradients_kept_by_stages_are_at_no_distance(plan: Plan, tmp_path: Path) -> None:
    # In these ranks a layout moves the last digits, whatever its dimensions are.
    one, other = (gradients(carried_out(tmp_path, plan, name)) for name in ("baseline", "pp"))
    deviations = gradient_deviations(one, other)
    assert [d.name for d in deviations] == NAMES
    assert 0 < max(d.relative for d in deviations) < 1e-6


@given(factor=st.floats(-100, 100), data=st.data())
def test_a_constant_factor_is_found_and_leaves_nothing_over(
    tmp_path_factory: pytest.TempPathFactory, factor: float, data: st.DataObject
) -> None:
    values = np.array(data.draw(st.lists(st.floats(0.125, 8, width=32), min_size=1, max_size=8)))
    found = deviation(tmp_path_factory.mktemp("pair"), values, np.float32(factor) * values)
    assert found.factor == pytest.approx(factor, rel=1e-6, abs=1e-6)
    assert found.relative == pytest.approx(abs(factor - 1), rel=1e-5, abs=1e-6)
    assert found.rest < 1e-5


def test_the_distance_is_the_norm_of_the_difference_over_that_of_the_reference(
    tmp_path: Path,
) -> None:
    found = deviation(tmp_path, [[3.0, 0.0], [0.0, 4.0]], [[3.0, 1.0], [0.0, 4.0]])
    assert found.relative == pytest.approx(0.2)
    assert found.factor == 1.0
    assert found.rest == found.relative


def test_a_gradient_that_is_all_zero_is_a_whole_norm_away(tmp_path: Path) -> None:
    found = deviation(tmp_path, [3.0, 4.0], [0.0, 0.0])
    assert (found.relative, found.factor) == (1.0, 0.0)


def test_a_small_gradient_is_held_against_a_part_of_all_of_them(tmp_path: Path) -> None:
    ours: dict[str, Any] = {"large": [1e6], "small": [1e-3]}
    one, other = pair(tmp_path, ours, ours | {"small": [2e-3]})
    found = by_name(gradient_deviations(one, other))
    assert found["large"].relative == 0.0
    assert found["small"].relative == pytest.approx(1e-3 / (FLOOR * 1e6), rel=1e-3)
    one, other = pair(tmp_path, {"small": [1e-3]}, {"small": [2e-3]})
    assert by_name(gradient_deviations(one, other))["small"].relative == pytest.approx(1.0)


def test_a_gradient_that_vanished_on_both_sides_is_the_same(tmp_path: Path) -> None:
    values: dict[str, Any] = {"a": [1.0], "unused": [0.0, 0.0]}
    found = by_name(gradient_deviations(*pair(tmp_path, values, values)))
    assert found["unused"].relative == 0.0


def test_gradients_that_are_all_zero_are_equal_to_nothing(tmp_path: Path) -> None:
    assert deviation(tmp_path, [0.0], [0.0]).relative == math.inf


@pytest.mark.parametrize(
    ("ours", "theirs", "odd"),
    [
        ({"a": [1.0], "b": [1.0]}, {"a": [1.0]}, "b"),
        ({"a": [1.0]}, {"a": [1.0], "b": [1.0]}, "b"),
        ({"a": [1.0], "b": [1.0, 2.0]}, {"a": [1.0], "b": [1.0]}, "b"),
        ({"a": [1.0], "b": [[1.0, 2.0]]}, {"a": [1.0], "b": [[1.0], [2.0]]}, "b"),
    ],
    ids=["missing", "new", "shorter", "transposed"],
)
def test_a_parameter_that_has_no_counterpart_is_infinitely_far(
    tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any], odd: str
) -> None:
    found = by_name(gradient_deviations(*pair(tmp_path, ours, theirs)))
    assert found.pop(odd).relative == math.inf
    assert {d.relative for d in found.values()} == {0.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_no_finite_number_is_at_a_distance_that_is_none(
    tmp_path: Path, value: float, side: int
) -> None:
    sides: list[dict[str, Any]] = [{"a": [1.0, 2.0], "b": [1.0]} for _ in range(2)]
    sides[side]["a"] = [1.0, value]
    found = by_name(gradient_deviations(*pair(tmp_path, *sides)))
    assert math.isnan(found["a"].relative)


def test_a_sketch_is_not_taken_for_a_tensor(tmp_path: Path) -> None:
    ours, theirs = {"a": np.ones((2, 4))}, {"a": np.ones(8)}
    assert by_name(gradient_deviations(*pair(tmp_path, ours, theirs)))["a"].relative == math.inf


# Distances of parameters


def moved(tmp_path: Path, start: Any, ours: Any, theirs: Any) -> dict[str, Deviation]:
    sides = zip(("start", "ours", "theirs"), (start, ours, theirs), strict=True)
    return by_name(
        parameter_deviations(*(written(tmp_path / n, a, moment="end") for n, a in sides))
    )


def test_a_parameter_is_held_against_what_training_did_to_it(tmp_path: Path) -> None:
    found = moved(
        tmp_path, {"a": [1000.0, 1000.0]}, {"a": [1000.0, 1002.0]}, {"a": [1000.0, 1001.0]}
    )
    assert found["a"].relative == pytest.approx(0.5)


def test_a_move_of_the_start_that_was_on_purpose_is_no_distance(tmp_path: Path) -> None:
    start = written(tmp_path / "start", {"a": [1.0, 1.0]})
    begun = written(tmp_path / "moved", {"a": [1.5, 0.5]})
    ours = written(tmp_path / "ours", {"a": [1.0, 2.0]})
    theirs = written(tmp_path / "theirs", {"a": [1.5, 1.5]})
    (found,) = parameter_deviations(start, ours, theirs, begun)
    assert found.relative == 0.0
    (plain,) = parameter_deviations(start, ours, theirs)
    assert plain.relative == pytest.approx(math.sqrt(0.5))
    further = written(tmp_path / "further", {"a": [1.5, 1.75]})
    (found,) = parameter_deviations(start, ours, further, begun)
    assert found.relative == pytest.approx(0.25)


def test_the_factor_of_a_parameter_is_that_of_its_change(tmp_path: Path) -> None:
    start, ours, theirs = {"a": [8.0, 8.0]}, {"a": [9.0, 6.0]}, {"a": [8.25, 7.5]}
    found = moved(tmp_path, start, ours, theirs)["a"]
    assert (found.relative, found.factor, found.rest) == (0.75, 0.25, 0.0)
    assert moved(tmp_path, start, ours, start)["a"].factor == 0.0


def test_a_parameter_that_training_left_alone_may_not_move_elsewhere(tmp_path: Path) -> None:
    start: dict[str, Any] = {"a": [1.0], "still": [1.0]}
    ours = start | {"a": [2.0]}
    assert moved(tmp_path, start, ours, ours)["still"].relative == 0.0
    found = moved(tmp_path, start, ours, ours | {"still": [1.001]})
    assert found["still"].relative == pytest.approx(1e-3 / FLOOR, rel=1e-3)


def test_a_parameter_of_which_no_start_was_kept_is_infinitely_far(tmp_path: Path) -> None:
    end: dict[str, Any] = {"a": [2.0], "b": [2.0]}
    found = moved(tmp_path, {"a": [1.0]}, end, end)
    assert (found["a"].relative, found["b"].relative) == (0.0, math.inf)


def test_parameters_that_training_did_not_move_at_all_are_equal_to_nothing(tmp_path: Path) -> None:
    still: dict[str, Any] = {"a": [1.0]}
    assert moved(tmp_path, still, still, still)["a"].relative == math.inf


# Where the difference lies


def rows(tmp_path: Path, ours: Any, theirs: Any, **changes: Any) -> tuple[int, int, int] | None:
    one = written(tmp_path / "ours", {"a": ours}, **changes)
    return rows_that_differ(one, written(tmp_path / "theirs", {"a": theirs}), "a")


def test_the_rows_of_one_rank_s_shard_are_found(tmp_path: Path) -> None:
    ours = np.ones((8, 4))
    theirs = ours.copy()
    theirs[4:6] *= 2
    assert rows(tmp_path, ours, theirs) == (4, 5, 8)
    # Rounding elsewhere does not hide it.
    assert rows(tmp_path, ours, theirs + 1e-6) == (4, 5, 8)


def test_a_difference_that_is_everywhere_is_found_everywhere(tmp_path: Path) -> None:
    assert rows(tmp_path, np.ones((8, 4)), 2 * np.ones((8, 4))) == (0, 7, 8)


def test_rows_of_a_tensor_of_more_dims_are_those_of_its_first(tmp_path: Path) -> None:
    theirs = np.ones((4, 2, 3))
    theirs[3, 1, 2] = 5.0
    assert rows(tmp_path, np.ones((4, 2, 3)), theirs) == (3, 3, 4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.ones(8), 2 * np.ones(8)),
        (np.ones((2, 2)), np.ones((2, 2))),
        (np.ones((2, 2)), np.ones((2, 3))),
        (np.ones((2, 2)), np.full((2, 2), math.nan)),
    ],
    ids=["vector", "equal", "other shape", "no number"],
)
def test_no_rows_are_named_where_there_are_none(tmp_path: Path, ours: Any, theirs: Any) -> None:
    assert rows(tmp_path, ours, theirs) is None


def test_no_rows_are_named_of_a_sketch_or_of_a_parameter_that_a_side_lacks(tmp_path: Path) -> None:
    assert rows(tmp_path, np.ones((2, 2)), np.zeros((2, 2)), mode="sketch") is None
    one, other = pair(tmp_path, {"a": np.ones((2, 2))}, {"b": np.ones((2, 2))})
    assert rows_that_differ(one, other, "a") is None
    assert rows_that_differ(one, other, "b") is None
