"""Faults of operators that were measured before: which check finds which, and which miss it."""

from __future__ import annotations

import torch

from tests.defects.kernels.mutant import Mutant
from tests.defects.kernels.operators import EPS, Forward, Two, backward, fake, forward, norm


def uninitialised_tail(x: torch.Tensor, weight: torch.Tensor) -> Two:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    right, r = forward(x, weight)
    y[:-1] = right[:-1]
    return y, r


def cached_answer() -> Forward:
    kept: dict[object, Two] = {}

    def ahead(x: torch.Tensor, weight: torch.Tensor) -> Two:
        y, r = kept.setdefault((x.shape, x.dtype), forward(x, weight))
        return y.clone(), r.clone()

    return ahead


def assumes_contiguous(x: torch.Tensor, weight: torch.Tensor) -> Two:
    return forward(x.as_strided(x.shape, (x.shape[1], 1)), weight)


def no_eps(x: torch.Tensor, weight: torch.Tensor) -> Two:
    return forward(x, weight, 1e-30)


def low_precision(x: torch.Tensor, weight: torch.Tensor) -> Two:
    mean = x.square().mean(dim=-1, keepdim=True)
    y = x * torch.rsqrt(mean + EPS) * weight
    return y.contiguous(), torch.rsqrt(mean + EPS).float()


def returns_input(x: torch.Tensor, weight: torch.Tensor) -> Two:
    return x, forward(x, weight)[1]


def mutates_input(x: torch.Tensor, weight: torch.Tensor) -> Two:
    found = forward(x, weight)
    x.mul_(1.001)
    return found


def drops_a_term(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor) -> Two:
    _, dw = backward(grad, x, weight, r)
    return (grad * weight * r).to(x.dtype).contiguous(), dw


def first_row_alone(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor
) -> Two:
    dx, _ = backward(grad, x, weight, r)
    return dx, backward(grad[:1], x[:1], weight, r[:1])[1]


def two_percent(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor) -> Two:
    dx, dw = backward(grad, x, weight, r)
    return dx, dw * 1.02


def strides_of_the_input(x: torch.Tensor, weight: torch.Tensor) -> Two:
    return torch.empty_like(x), fake(x, weight)[1]


def always_float32(x: torch.Tensor, weight: torch.Tensor) -> Two:
    return torch.empty(x.shape, dtype=torch.float32), fake(x, weight)[1]


OF_FACTS = (
    Mutant(
        "uninitialised tail",
        "the last row is never written",
        lambda _: norm(uninitialised_tail),
        "conduct",
        "float32: memory that nothing wrote",
    ),
    Mutant(
        "cached answer",
        "the first result of a shape is given for ever",
        lambda _: norm(cached_answer()),
        "accuracy",
        "float32, ragged, other values: largest error",
    ),
    Mutant(
        "assumes contiguous",
        "memory is read as if rows lay one after the other",
        lambda _: norm(assumes_contiguous),
        "accuracy",
        "float32, not contiguous: largest error",
    ),
    Mutant(
        "no eps",
        "eps is left out, which only small inputs show",
        lambda _: norm(no_eps),
        "accuracy",
        "float32, tiny: largest error",
    ),
    Mutant(
        "low precision",
        "sums are taken in the dtype of the rows",
        lambda _: norm(low_precision),
        "accuracy",
        "bfloat16, ragged: frobenius error",
    ),
    Mutant(
        "returns its input",
        "the output is the input itself",
        lambda _: norm(returns_input),
        "running",
        "float32: runs forward and backward, fails",
    ),
    Mutant(
        "mutates its input",
        "the input is changed after it was read",
        lambda _: norm(mutates_input),
        "conduct",
        "float32: changed inputs",
    ),
    Mutant(
        "drops a term",
        "the mean is held to be constant in the backward",
        lambda _: norm(back=drops_a_term),
        "differences",
        "float32: gradients that no difference gives",
    ),
    Mutant(
        "first row alone",
        "the weight's gradient is that of one row",
        lambda _: norm(back=first_row_alone),
        "accuracy",
        "float32, ragged: largest error",
    ),
    Mutant(
        "two percent",
        "a gradient is too large by a constant, which no loss curve shows",
        lambda _: norm(back=two_percent),
        "accuracy",
        "bfloat16, ragged: frobenius error",
    ),
    Mutant(
        "fake strides",
        "the fake keeps the strides of the input, the kernel does not",
        lambda _: norm(faked=strides_of_the_input),
        "operators",
        "float32, not contiguous: opcheck",
    ),
    Mutant(
        "fake dtype",
        "the fake always says float32",
        lambda _: norm(faked=always_float32),
        "operators",
        "bfloat16, contiguous: opcheck",
    ),
    Mutant(
        "no fake",
        "nothing says what a graph will see",
        lambda _: norm(faked=None),
        "compile",
        "float32: compiled as one graph, differs",
    ),
)
