from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.ours import SWIGLU
from trn_validate.kernels.opcheck.accuracy import FLOOR, Ratios, accuracy_checks, ratios
from trn_validate.kernels.opcheck.subject import Case

EXACT = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)


def off(by: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (EXACT + by).to(dtype)


def test_an_error_is_counted_in_those_of_torch() -> None:
    found = ratios(off(0.5), off(0.25), EXACT)
    assert (found.largest, found.frobenius) == (2.0, 2.0)


def test_one_wrong_element_shows_in_the_largest_and_many_small_ones_in_the_norm() -> None:
    one = off(0.25)
    one[0] += 0.75
    assert ratios(one, off(0.25), EXACT).largest == 4.0
    low = off(0.0)
    low[0] += 0.5
    many = ratios(off(0.5), low, EXACT)
    assert (many.largest, many.frobenius) == (1.0, 2.0)


def test_in_float32_an_error_below_the_floor_passes_though_torch_is_exact() -> None:
    found = ratios(off(4.0 * FLOOR * 0.9), off(0.0), EXACT)
    assert found.largest <= 2.0


def test_the_floor_grows_with_the_root_of_the_terms_of_a_sum() -> None:
    found = off(4.0 * FLOOR * 9)
    assert (
        ratios(found, off(0.0), EXACT, 100).largest <= 2.0 < ratios(found, off(0.0), EXACT).largest
    )


def test_in_bfloat16_there_is_no_floor() -> None:
    found = ratios(off(0.02, torch.bfloat16), off(0.0, torch.bfloat16), EXACT)
    assert found == Ratios(math.inf, math.inf)


def test_no_error_is_no_error_though_torch_has_none() -> None:
    assert ratios(off(0.0), off(0.0), EXACT) == Ratios(0.0, 0.0)


@pytest.mark.parametrize(
    "found",
    [
        off(0.0, torch.bfloat16),
        off(0.0)[:3],
        torch.full((4,), math.nan),
        torch.tensor([1.0, 2.0, 3.0, math.nan]),
    ],
    ids=["dtype", "shape", "NaN", "one NaN"],
)
def test_what_cannot_be_compared_has_no_ratio(found: torch.Tensor) -> None:
    assert math.isnan(ratios(found, off(0.25), EXACT).largest)


def test_an_infinite_output_fails() -> None:
    found = ratios(torch.full((4,), math.inf), off(0.25), EXACT)
    assert not found.largest <= 2.0


def test_a_check_names_the_worst_tensor_of_its_case() -> None:
    checks = accuracy_checks(SWIGLU, torch.float32, [Case("small", "small")])
    assert [one.name for one in checks] == [
        "swiglu float32, small: largest error",
        "swiglu float32, small: frobenius error",
    ]
    for one in checks:
        assert one.passed and one.detail in ("output", "gradient 0", "gradient 1")
