"""An operator and its gradients against its reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

MAX_RATIO, NORM_RATIO = 2.0, 1.2
"""Largest error, and its Frobenius norm, in those of torch in the same dtype."""
FLOOR = 4 * torch.finfo(torch.float32).eps
"""In float32 torch may be right to the bit; errors below this, of the largest value, pass."""

Function = Callable[..., torch.Tensor]


def random(seed: int, *shapes: tuple[int, ...], scale: float = 1.0) -> list[torch.Tensor]:
    """Tensors of normal numbers, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [
        scale * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes
    ]


def results(
    function: Function, inputs: Sequence[torch.Tensor], grad: torch.Tensor, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Output and gradients of every input, computed in ``dtype`` from fresh copies."""
    leaves = [one.to(dtype, copy=True).requires_grad_() for one in inputs]
    output = function(*leaves)
    gradients = torch.autograd.grad(output, leaves, grad.to(dtype))
    return [output.detach(), *gradients]


def assert_accurate(
    function: Function,
    reference: Function,
    inputs: Sequence[torch.Tensor],
    grad: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Errors of ``function`` are about those of ``reference`` in ``dtype``, both against float64.

    ``inputs`` are rounded to ``dtype`` first, so that their rounding is no error.
    """
    inputs = [one.to(dtype).double() for one in inputs]
    grad = grad.to(dtype).double()
    found = results(function, inputs, grad, dtype)
    low = results(reference, inputs, grad, dtype)
    exact = results(reference, inputs, grad, torch.float64)
    assert len(found) == len(inputs) + 1
    for mine, torchs, gold in zip(found, low, exact, strict=True):
        assert mine.dtype == dtype and mine.shape == gold.shape
        error, its = mine.double() - gold, torchs.double() - gold
        floor = FLOOR * gold.abs().max() if dtype == torch.float32 else 0.0
        assert error.abs().max() <= max(MAX_RATIO * its.abs().max(), floor)
        size = gold.numel() ** 0.5
        assert error.norm() <= max(NORM_RATIO * its.norm(), floor * size)


def assert_same_bits(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> None:
    """Every tensor equals its partner, to the bit, and is finite."""
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert bool(torch.isfinite(left).all())
        assert torch.equal(left, right)
