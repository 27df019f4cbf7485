"""An operator and its gradients against its reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from trn_validate.kernels.opcheck.accuracy import FROBENIUS, LARGEST, compared
from trn_validate.kernels.opcheck.subject import Subject
from trn_validate.kernels.opcheck.subject import results as results_of

Function = Callable[..., torch.Tensor]


def random(seed: int, *shapes: tuple[int, ...], scale: float = 1.0) -> list[torch.Tensor]:
    """Tensors of normal numbers, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [
        scale * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes
    ]


def results(
    function: Function, inputs: Sequence[torch.Tensor], grad: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Output and gradients of every input, computed in ``dtype``."""
    return results_of(function, tuple(one.to(dtype) for one in inputs), grad.to(dtype))


def assert_accurate(
    function: Function,
    reference: Function,
    inputs: Sequence[torch.Tensor],
    grad: torch.Tensor,
    dtype: torch.dtype,
    depth: int = 1,
) -> None:
    """Errors of ``function`` are about those of ``reference`` in ``dtype``."""
    subject = Subject("test", function, reference, shapes={}, launches={}, depth=depth)
    found = compared(subject, tuple(one.to(dtype) for one in inputs), grad.to(dtype))
    assert len(found) == len(inputs) + 1
    for ratio in found:
        assert ratio.largest <= LARGEST
        assert ratio.frobenius <= FROBENIUS


def assert_same_bits(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> None:
    """Every tensor equals its partner, to the bit, and is finite."""
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert bool(torch.isfinite(left).all())
        assert torch.equal(left, right)
