from __future__ import annotations

import pytest
import torch

from tests.kernels.ours import RMSNORM, SUBJECTS
from trn_validate.kernels.opcheck.subject import CASES, Case, copied, made, strided


def test_inputs_follow_from_the_seeds() -> None:
    first, grad = made(RMSNORM, Case("a"), torch.float32)
    again, same = made(RMSNORM, Case("a"), torch.float32)
    other, _ = made(RMSNORM, Case("a", seed=1), torch.float32)
    assert torch.equal(first[0], again[0]) and torch.equal(grad, same)
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], made(RMSNORM, Case("a"), torch.float32, seed=1)[0][0])


@pytest.mark.parametrize(("scale", "least", "most"), [(1e-3, 1e-4, 1e-2), ("large", 1e3, 1e5)])
def test_only_what_is_scaled_is_scaled(scale: float, least: float, most: float) -> None:
    (x, weight), _ = made(RMSNORM, Case("a", scale=scale), torch.float32)
    assert least < float(x.std()) < most
    assert 0.5 < float(weight.mean()) < 1.5


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4)], ids=str)
def test_other_strides_have_the_same_values_and_a_copy_keeps_them(shape: tuple[int, ...]) -> None:
    given = torch.randn(shape)
    bent = strided(given)
    assert torch.equal(bent, given) and bent.stride() != given.stride()
    assert copied(bent).stride() == bent.stride() and torch.equal(copied(bent), given)


def test_the_cases_are_those_that_find_what_others_miss() -> None:
    by = {one.name: one for one in CASES}
    assert len(by) == len(CASES)
    assert any(one.strided for one in CASES) and {one.cores for one in CASES} == {None, 1, 2}
    assert {one.scale for one in CASES} == {1.0, 1e-3, "large", 0.0}
    assert len({one.seed for one in CASES}) == 2


@pytest.mark.parametrize("name", SUBJECTS)
def test_shapes_are_what_their_names_promise(name: str) -> None:
    shapes = SUBJECTS[name].shapes
    assert shapes["one row"][0][0] == 1 and shapes["many rows"][0][0] > 256
    assert all(size % 128 for size in shapes["ragged"][0])
