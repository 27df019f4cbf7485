from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.kernels.accuracy import assert_accurate, assert_same_bits, random, results
from trn_validate.errors import KernelError
from trn_validate.kernels import launches
from trn_validate.kernels.rmsnorm import LAUNCHES, reference, rmsnorm

EPS = 1e-5
SHAPES = [(1, 7), (129, 130), (260, 520), (2, 2050)]
DTYPES = [torch.float32, torch.bfloat16]

kernel = partial(rmsnorm, eps=EPS)
plain = partial(reference, eps=EPS)


def made(shape: tuple[int, int], scale: float = 1.0) -> tuple[list[torch.Tensor], torch.Tensor]:
    x, grad = random(sum(shape), shape, shape, scale=scale)
    (weight,) = random(1, shape[1:])
    return [x, weight + 1], grad


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_as_accurate_as_torch(shape: tuple[int, int], dtype: torch.dtype, lnc: int) -> None:
    inputs, grad = made(shape)
    with launches.on_cores(lnc):
        assert_accurate(kernel, plain, inputs, grad, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_core_and_two_give_the_same_bits(dtype: torch.dtype) -> None:
    inputs, grad = made((300, 600))
    found = []
    for lnc in (1, 2):
        with launches.on_cores(lnc):
            found.append(results(kernel, inputs, grad, dtype))
    assert_same_bits(*found)


def test_zeros_give_zeros_and_the_gradient_that_eps_leaves() -> None:
    x, weight = torch.zeros(3, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    rmsnorm(x, weight, EPS).sum().backward()
    assert x.grad is not None and weight.grad is not None
    assert torch.allclose(x.grad, torch.full((3, 8), EPS**-0.5), rtol=1e-6, atol=0.0)
    assert not weight.grad.any()


def test_leading_dims_and_strides_do_not_matter() -> None:
    x, weight = torch.randn(6, 5, 40), torch.randn(80)[::2]
    bent = x.transpose(0, 1)
    assert not bent.is_contiguous() and not weight.is_contiguous()
    found = rmsnorm(bent, weight, EPS)
    assert found.shape == bent.shape
    assert torch.equal(found, rmsnorm(x, weight.contiguous(), EPS).transpose(0, 1))


def test_every_launch_is_counted_and_nothing_else() -> None:
    x, weight = torch.randn(300, 40, requires_grad=True), torch.ones(40, requires_grad=True)
    for times in (1, 2, 3):
        rmsnorm(x, weight, EPS).sum().backward()
        assert launches.counts() == {name: times * count for name, count in LAUNCHES.items()}
    reference(x, weight, EPS).sum().backward()
    assert launches.counts() == {name: 3 * count for name, count in LAUNCHES.items()}


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.ones(4, 8), torch.ones(7)),
        (torch.ones(4, 8), torch.ones(8, dtype=torch.bfloat16)),
        (torch.ones(4, 8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)),
        (torch.ones(0, 8), torch.ones(8)),
    ],
    ids=["columns", "dtypes", "float64", "no rows"],
)
def test_what_it_cannot_launch_is_an_error_and_no_launch(
    x: torch.Tensor, weight: torch.Tensor
) -> None:
    with pytest.raises(KernelError):
        rmsnorm(x, weight, EPS)
    assert launches.counts() == {}


def test_the_widest_rows_that_the_docstring_promises_fit() -> None:
    x, weight = torch.randn(2, 16000, requires_grad=True), torch.ones(16000, requires_grad=True)
    rmsnorm(x, weight, EPS).sum().backward()
    assert x.grad is not None and bool(torch.isfinite(x.grad).all())


def test_a_compiled_graph_launches_it_and_gives_the_same_bits() -> None:
    inputs, grad = made((130, 40))
    eager = results(kernel, inputs, grad, torch.float32)
    compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    launches.reset()
    assert_same_bits(results(compiled, inputs, grad, torch.float32), eager)
    assert launches.counts() == LAUNCHES
