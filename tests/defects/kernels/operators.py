"""Operators around our kernels with one thing replaced."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tests.kernels.ours import RMSNORM
from trn_validate.kernels import rmsnorm
from trn_validate.kernels.opcheck.subject import Subject

EPS = 1e-6
Two = tuple[torch.Tensor, torch.Tensor]
Forward = Callable[[torch.Tensor, torch.Tensor], Two]
Backward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Two]

_number = itertools.count()
"""An operator cannot be registered twice."""


def forward(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> Two:
    """The kernel: y, and the reciprocal roots (rows, 1)."""
    y, r = rmsnorm.forward_op(x, weight, eps)
    return y, r


def backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor) -> Two:
    """The kernel: dx and dw."""
    dx, dw = rmsnorm.backward_op(grad, x, weight, r)
    return dx, dw


def fake(x: torch.Tensor, weight: torch.Tensor) -> Two:
    """What a right fake says."""
    return x.new_empty(x.shape), x.new_empty((x.shape[0], 1), dtype=torch.float32)


def norm(
    ahead: Forward = forward, back: Backward = backward, faked: Callable[..., Any] | None = fake
) -> Subject:
    """RMSNorm as it is checked, with a forward, backward or fake of its own."""

    def body(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ahead(x, weight)

    def back_body(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return back(grad, x, weight, r)

    number = next(_number)
    # The bodies close over torch's types, which the schema is read from.
    for one in (body, back_body):
        one.__annotations__ = {
            name: torch.Tensor if name != "return" else Two for name in one.__annotations__
        }
    op = torch.library.custom_op(f"defects::norm{number}", body, mutates_args=())
    op_back = torch.library.custom_op(f"defects::norm{number}_back", back_body, mutates_args=())
    if faked is not None:
        op.register_fake(faked)
    op_back.register_fake(
        lambda grad, x, weight, r: (x.new_empty(x.shape), torch.empty_like(weight))
    )
    op.register_autograd(partial(_gradients, op_back), setup_context=_setup)
    return replace(RMSNORM, function=lambda x, weight: op(x, weight)[0])


def _setup(ctx: Any, inputs: tuple[torch.Tensor, ...], output: Two) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _gradients(op: Any, ctx: Any, grad: torch.Tensor, _: object) -> Two:
    dx, dw = op(grad, *ctx.saved_tensors)
    return dx, dw
