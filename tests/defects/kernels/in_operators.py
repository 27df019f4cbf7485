"""More faults of operators."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from tests.defects.kernels.mutant import Mutant
from tests.defects.kernels.operators import EPS, Backward, Two, backward, forward, norm
from tests.kernels.ours import EXPERT_MLP, RMSNORM
from trn_validate.kernels.opcheck.subject import Subject


def eps_outside(x: torch.Tensor, weight: torch.Tensor) -> Two:
    _, r = forward(x, weight)
    root = x.float().square().mean(dim=-1, keepdim=True).sqrt()
    return (x / (root + EPS) * weight).to(x.dtype).contiguous(), r


def gradient_in_place(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor
) -> Two:
    found = backward(grad, x, weight, r)
    grad.mul_(0.5)
    return found


def stale_backward() -> Backward:
    kept: dict[object, Two] = {}

    def back(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor) -> Two:
        dx, dw = kept.setdefault((x.shape, x.dtype), backward(grad, x, weight, r))
        return dx.clone(), dw.clone()

    return back


def above_128(x: torch.Tensor, weight: torch.Tensor) -> Two:
    y, r = forward(x, weight)
    y[128:] *= 1.001
    return y, r


def fallback(x: torch.Tensor, weight: torch.Tensor) -> Two:
    r = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + EPS)
    return F.rms_norm(x, weight.shape, weight, EPS).contiguous(), r


def fallback_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor
) -> Two:
    above, normal = grad.float() * weight.float(), x.float() * r
    dx = r * (above - normal * (above * normal).mean(dim=-1, keepdim=True))
    return dx.to(x.dtype).contiguous(), (grad.float() * normal).sum(dim=0).to(weight.dtype)


def twice(x: torch.Tensor, weight: torch.Tensor) -> Two:
    forward(x, weight)
    return forward(x, weight)


def drifting(x: torch.Tensor, weight: torch.Tensor) -> Two:
    y, r = forward(x, weight)
    return y + 1e-4 * torch.randn_like(y), r


def zeros(x: torch.Tensor, weight: torch.Tensor) -> Two:
    y, r = forward(x, weight)
    return y.zero_(), r


def unregistered() -> Subject:
    return replace(RMSNORM, function=RMSNORM.reference)


def weights_swapped() -> Subject:
    def swapped(
        x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
    ) -> torch.Tensor:
        return EXPERT_MLP.function(x, w3, w2, w1)

    return replace(EXPERT_MLP, function=swapped)


IN_OPERATORS = (
    Mutant(
        "wrong eps",
        "eps is ten times what it should be",
        lambda _: norm(partial(forward, eps=10 * EPS)),
        "accuracy",
        "float32, tiny: largest error",
    ),
    Mutant(
        "eps outside the root",
        "eps is added to the root",
        lambda _: norm(eps_outside),
        "accuracy",
        "float32, tiny: largest error",
    ),
    Mutant(
        "gradient changed in place",
        "the gradient of the output is used as a buffer",
        lambda _: norm(back=gradient_in_place),
        "conduct",
        "float32: changed inputs",
    ),
    Mutant(
        "stale backward",
        "the first gradients of a shape are given for ever",
        lambda _: norm(back=stale_backward()),
        "accuracy",
        "float32, ragged, other values: largest error",
    ),
    Mutant(
        "above 128 rows",
        "only the first block is right",
        lambda _: norm(above_128),
        "accuracy",
        "float32, many rows, one core: largest error",
    ),
    Mutant(
        "silent fallback",
        "the reference stands in for the kernel",
        lambda _: norm(fallback),
        "conduct",
        "float32: launches of rmsnorm_forward",
    ),
    Mutant(
        "silent fallback backward",
        "plain torch stands in for the kernel, in the backward alone",
        lambda _: norm(back=fallback_backward),
        "conduct",
        "float32: launches of rmsnorm_backward",
    ),
    Mutant(
        "launched twice",
        "a kernel is launched for nothing",
        lambda _: norm(twice),
        "conduct",
        "float32: launches of rmsnorm_forward",
    ),
    Mutant(
        "drifting",
        "a second call gives other values than the first",
        lambda _: norm(drifting),
        "conduct",
        "float32: differs from call to call",
    ),
    Mutant(
        "zeros",
        "nothing is computed, and the call succeeds",
        lambda _: norm(zeros),
        "conduct",
        "float32: degenerate outputs",
    ),
    Mutant(
        "no operator",
        "the kernel was never put in",
        lambda _: unregistered(),
        "operators",
        "float32, contiguous: operators called",
    ),
    Mutant(
        "gate and up swapped",
        "the weights come in another order",
        lambda _: weights_swapped(),
        "accuracy",
        "float32, ragged: largest error",
    ),
)
