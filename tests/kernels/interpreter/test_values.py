"""What the interpreter computes, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.interpreter.programs import Tensor, loaded, run, stored
from trn_validate.kernels.interpreter import Host
from trn_validate.kernels.interpreter import isa as nisa
from trn_validate.kernels.interpreter import language as nl

EPS = 2.0**-24
"""Half a unit in the last place of one, in float32."""
DTYPES = {nl.float32: torch.float32, nl.bfloat16: torch.bfloat16}

dtypes = st.sampled_from(sorted(DTYPES))
seeds = st.integers(0, 2**16)
# Above 88 torch's float32 exp overflows and its silu is zero where it should be 1e-37.
scales = st.sampled_from([1e-3, 1.0, 10.0])
few = settings(max_examples=25, deadline=None)


def random(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(DTYPES[dtype])


def host(tensor: torch.Tensor) -> Host:
    names = {kind: name for name, kind in DTYPES.items()}
    return Host(tensor.float().numpy(), names[tensor.dtype])


def back(found: Host) -> torch.Tensor:
    return torch.from_numpy(found.values).to(DTYPES[found.dtype])


def units(found: torch.Tensor, expected: torch.Tensor) -> int:
    """Largest distance in units in the last place of their dtype; both finite."""
    assert found.dtype == expected.dtype
    assert bool(torch.isfinite(found).all()) and bool(torch.isfinite(expected).all())
    kind = torch.int32 if found.dtype == torch.float32 else torch.int16
    pair = []
    for tensor in (found, expected):
        bits = tensor.contiguous().view(kind).long()
        top = 1 << (31 if kind == torch.int32 else 15)
        pair.append(torch.where(bits < 0, -(bits + top), bits))
    return int((pair[0] - pair[1]).abs().max())


def unary(apply: Callable[[Tensor, Tensor], None], dtype: str) -> Callable[..., Tensor]:
    def kernel(x: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, dtype)
        apply(out, loaded(x))
        return stored(out)

    return kernel


shapes = st.tuples(st.integers(1, 128), st.integers(1, 300))


@few
@given(shapes, dtypes, dtypes, seeds, scales)
@pytest.mark.parametrize(
    ("op", "expected"),
    [(nl.add, torch.add), (nl.subtract, torch.sub), (nl.multiply, torch.mul)],
    ids=["add", "subtract", "multiply"],
)
def test_tensor_tensor_computes_in_float32_and_rounds_once(
    op: Any,
    expected: Any,
    shape: tuple[int, int],
    dtype: str,
    out: str,
    seed: int,
    scale: float,
) -> None:
    a, b = random(shape, dtype, seed, scale), random(shape, nl.float32, seed + 1)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        result = nl.ndarray(x.shape, out)
        nisa.tensor_tensor(result, loaded(x), loaded(y), op=op)
        return stored(result)

    found = back(run(kernel, host(a), host(b))[0])
    assert units(found, expected(a.float(), b).to(DTYPES[out])) == 0


@few
@given(shapes, dtypes, seeds, scales)
@pytest.mark.parametrize(
    ("op", "expected", "shift"),
    [(nl.silu, F.silu, 0.0), (nl.rsqrt, torch.rsqrt, 1e-6), (nl.copy, torch.clone, 0.0)],
    ids=["silu", "rsqrt", "copy"],
)
def test_activations_are_within_two_units_of_torch(
    op: Any,
    expected: Any,
    shift: float,
    shape: tuple[int, int],
    dtype: str,
    seed: int,
    scale: float,
) -> None:
    x = random(shape, dtype, seed, scale)
    x = x.square() + shift if shift else x
    found = back(run(unary(lambda o, t: nisa.activation(o, op, t), nl.float32), host(x))[0])
    assert units(found, expected(x.float())) <= 2
    # torch has errors of its own; against float64 there is one rounding.
    assert units(found, expected(x.double()).float()) <= 1


@few
@given(shapes, dtypes, seeds, scales)
def test_the_derivative_of_silu_is_within_one_unit(
    shape: tuple[int, int], dtype: str, seed: int, scale: float
) -> None:
    x = random(shape, dtype, seed, scale)
    exact = x.double().requires_grad_()
    (slope,) = torch.autograd.grad(F.silu(exact).sum(), exact)
    # Above 37 torch takes 1 - sigmoid, which is zero in float64, so the two differ below eps.
    found = back(run(unary(lambda o, t: nisa.activation(o, nl.silu_dx, t), nl.float32), host(x))[0])
    far = slope.float().abs() < 1e-12
    assert units(torch.where(far, 0, found), torch.where(far, 0, slope.float())) <= 1


@few
@given(shapes, dtypes, seeds)
def test_an_activation_scales_and_shifts_before_it_applies(
    shape: tuple[int, int], dtype: str, seed: int
) -> None:
    x, shift = random(shape, dtype, seed), random((shape[0], 1), nl.float32, seed + 1)

    def kernel(data: Tensor, bias: Tensor) -> Tensor:
        out = nl.ndarray(data.shape, nl.float32)
        nisa.activation(out, nl.copy, loaded(data), bias=loaded(bias), scale=0.75)
        return stored(out)

    assert units(back(run(kernel, host(x), host(shift))[0]), x.float() * 0.75 + shift) == 0


@few
@given(shapes, dtypes, seeds, st.booleans())
def test_tensor_scalar_applies_two_operators_and_can_reverse_the_second(
    shape: tuple[int, int], dtype: str, seed: int, reverse: bool
) -> None:
    x, factor = random(shape, dtype, seed), random((shape[0], 1), nl.float32, seed + 1)

    def kernel(data: Tensor, column: Tensor) -> Tensor:
        out = nl.ndarray(data.shape, nl.float32)
        nisa.tensor_scalar(
            out,
            loaded(data),
            op0=nl.multiply,
            operand0=loaded(column),
            op1=nl.subtract,
            operand1=0.5,
            reverse1=reverse,
        )
        return stored(out)

    product = x.float() * factor
    expected = 0.5 - product if reverse else product - 0.5
    assert units(back(run(kernel, host(x), host(factor))[0]), expected) == 0


@few
@given(st.integers(1, 128), st.integers(1, 2000), dtypes, seeds, st.booleans())
def test_a_sum_is_within_n_eps_of_the_sum_of_absolute_values(
    rows: int, columns: int, dtype: str, seed: int, negate: bool
) -> None:
    x = random((rows, columns), dtype, seed)

    def kernel(data: Tensor) -> Tensor:
        out = nl.ndarray((rows, 1), nl.float32)
        nisa.tensor_reduce(out, nl.add, loaded(data), axis=1, negate=negate, keepdims=True)
        return stored(out)

    found = back(run(kernel, host(x))[0]).double()
    exact = x.double().sum(1, keepdim=True) * (-1 if negate else 1)
    bound = columns * EPS * x.double().abs().sum(1, keepdim=True)
    assert bool(((found - exact).abs() <= bound).all())


@few
@given(st.integers(1, 300), st.integers(1, 128), st.integers(1, 512), dtypes, seeds)
def test_a_product_is_within_n_eps_of_the_sum_of_absolute_products(
    inner: int, rows: int, columns: int, dtype: str, seed: int
) -> None:
    a, b = random((inner, rows), dtype, seed), random((inner, columns), dtype, seed + 1)

    def kernel(left: Tensor, right: Tensor) -> Tensor:
        total = nl.ndarray((rows, columns), nl.float32, nl.psum)
        for start in range(0, inner, nl.tile_size.pmax):
            part = nl.ds(start, min(nl.tile_size.pmax, inner - start))
            nisa.nc_matmul(total, loaded(left[part]), loaded(right[part]), accumulate=start > 0)
        out = nl.ndarray((rows, columns), nl.float32)
        nisa.tensor_copy(out, total)
        return stored(out)

    found = back(run(kernel, host(a), host(b))[0]).double()
    exact = a.double().T @ b.double()
    bound = inner * EPS * (a.double().abs().T @ b.double().abs())
    assert bool(((found - exact).abs() <= bound).all())


@few
@given(st.integers(1, 128), st.integers(1, 128), dtypes, seeds)
def test_a_transpose_moves_every_bit(rows: int, columns: int, dtype: str, seed: int) -> None:
    x = random((rows, columns), dtype, seed)

    def kernel(data: Tensor) -> Tensor:
        flipped = nl.ndarray((columns, rows), dtype, nl.psum)
        nisa.nc_transpose(flipped, loaded(data))
        out = nl.ndarray((columns, rows), dtype)
        nisa.tensor_copy(out, flipped)
        return stored(out)

    assert torch.equal(back(run(kernel, host(x))[0]), x.T)


@few
@given(seeds, st.sampled_from([1e-38, 1e-30, 1.0, 1e30, 3e38]))
def test_bfloat16_rounds_as_torch_does_for_every_size(seed: int, scale: float) -> None:
    x = random((7, 500), nl.float32, seed, scale)

    def kernel(data: Tensor) -> Tensor:
        out = nl.ndarray(data.shape, nl.bfloat16)
        nisa.tensor_copy(out, loaded(data))
        return stored(out)

    assert torch.equal(back(run(kernel, host(x))[0]), x.to(torch.bfloat16))


def test_bfloat16_rounds_ties_to_even_and_keeps_infinities_and_nan() -> None:
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, -np.inf, np.nan, 3.4e38]
    # A NaN whose last bits are all set would carry into infinity.
    full = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    x = np.concatenate([np.array(ties, np.float32), full])[None]

    def kernel(data: Tensor) -> Tensor:
        out = nl.ndarray(data.shape, nl.bfloat16)
        nisa.tensor_copy(out, loaded(data))
        return stored(out)

    found = run(kernel, x)[0].values[0]
    assert found[:4].tolist() == [1.0, 1 + 2.0**-6, np.inf, -np.inf]
    assert np.isnan(found[[4, 6, 7]]).all()
    assert found[5] == np.inf


def test_a_dma_changes_the_dtype_by_way_of_float32() -> None:
    x = random((130, 3), nl.float32, 0)

    def kernel(data: Tensor) -> Tensor:
        out = nl.ndarray(data.shape, nl.bfloat16, nl.shared_hbm)
        nisa.dma_copy(out, data)
        return out

    assert torch.equal(back(run(kernel, host(x))[0]), x.to(torch.bfloat16))


def test_rsqrt_outside_its_documented_range_is_no_number() -> None:
    x = np.array([[0.0, -1.0, 2.0**-88, 2.0**98, 4.0]], np.float32)
    found = run(unary(lambda o, t: nisa.activation(o, nl.rsqrt, t), nl.float32), x)[0].values[0]
    assert np.isnan(found[:4]).all()
    assert found[4] == 0.5


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_new_tensor_is_no_number_wherever_it_lies(dtype: str) -> None:
    def kernel() -> Tensor:
        for buffer in (nl.sbuf, nl.psum, nl.hbm):
            assert np.isnan(nl.ndarray((3, 5), dtype, buffer).values).all()
        return nl.ndarray((3, 5), dtype, nl.shared_hbm)

    assert np.isnan(run(kernel)[0].values).all()


def test_a_new_integer_is_no_index() -> None:
    def kernel() -> Tensor:
        return nl.ndarray((2, 2), nl.int32, nl.shared_hbm)

    assert (run(kernel)[0].values == np.iinfo(np.int32).min).all()
