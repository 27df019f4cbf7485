"""The expert MLP of a mixture of experts: for the rows of expert e,

``out = (silu(x @ w1[e].T) * (x @ w3[e].T)) @ w2[e].T``

with x (rows, D) sorted by expert, counts (E,), w1 and w3 (E, F, D), w2 (E, D, F): the layout of
torchtitan's ``GroupedExperts`` (``models/common/moe.py``). The kernels are in
:mod:`.expert_mlp_nki`. Rows behind those that the counts name give zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import is_fake

from trn_validate.errors import KernelError
from trn_validate.kernels.expert_blocks import lay_out
from trn_validate.kernels.expert_mlp_nki import backward_kernel, forward_kernel, weights_kernel
from trn_validate.kernels.launches import launch, register
from trn_validate.kernels.tiles import ROWS

Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

LAUNCHES = {"expert_mlp_forward": 1, "expert_mlp_backward": 1, "expert_mlp_weights": 1}
"""Launches of one forward and backward."""


def reference(
    x: torch.Tensor, counts: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> torch.Tensor:
    """The same in plain torch, expert after expert, for any float dtype."""
    rows = torch.split(x[: int(counts.sum())], counts.tolist())
    # To unbind costs one stack in the backward; to index, a whole weight for each expert.
    parts = [
        F.linear(F.silu(F.linear(one, gate)) * F.linear(one, up), down)
        for one, gate, down, up in zip(rows, w1.unbind(), w2.unbind(), w3.unbind(), strict=True)
    ]
    routed = torch.cat(parts)
    return F.pad(routed, (0, 0, 0, x.shape[0] - routed.shape[0]))


def _check(
    x: torch.Tensor, counts: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> None:
    experts, hidden, wide = w1.shape if w1.dim() == 3 else (0, 0, 0)
    fits = (
        x.dim() == 2
        and x.shape[0] > 0
        and x.shape[1] == wide
        and counts.shape == (experts,)
        and w3.shape == w1.shape
        and w2.shape == (experts, wide, hidden)
        and x.dtype == w1.dtype == w2.dtype == w3.dtype
    )
    if not fits:
        given = ", ".join(f"{tuple(one.shape)} {one.dtype}" for one in (x, counts, w1, w2, w3))
        raise KernelError(
            f"expert_mlp of {given}",
            todo="Give x (rows, D), counts (E,), w1 (E, F, D), w2 (E, D, F) and w3 (E, F, D).",
        )
    # To look at the counts of a device would wait for it.
    if counts.device.type == "cpu" and not is_fake(counts):
        least, total = int(counts.min()), int(counts.sum())
        if least < 0 or total > x.shape[0]:
            raise KernelError(
                f"expert_mlp of {x.shape[0]} rows by counts from {least} with sum {total}",
                todo="Give counts of at least 0 that sum to at most the rows.",
            )


def _forward(
    x: torch.Tensor, counts: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check(x, counts, w1, w2, w3)
    blocks = lay_out(counts, x.shape[0])
    turned = (one.transpose(1, 2).contiguous() for one in (w1, w3, w2))
    out, gate, up = launch(
        "expert_mlp_forward", forward_kernel, blocks.spread(x), blocks.expert, *turned
    )
    return blocks.gathered(out), gate, up


def _forward_fake(
    x: torch.Tensor, counts: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    places = (x.shape[0] // ROWS + counts.shape[0]) * ROWS
    inner = (places, w1.shape[1])
    return x.new_empty(x.shape), x.new_empty(inner), x.new_empty(inner)


def _backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    counts: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> Four:
    blocks = lay_out(counts, x.shape[0])
    above = blocks.spread(grad)
    weights = (one.contiguous() for one in (w1, w3, w2))
    dx, dgate, dup, h = launch(
        "expert_mlp_backward",
        backward_kernel,
        above,
        gate.contiguous(),
        up.contiguous(),
        blocks.expert,
        *weights,
    )
    tables = (blocks.expert, blocks.more, counts.shape[0])
    dw1, dw2, dw3 = launch(
        "expert_mlp_weights", weights_kernel, above, blocks.spread(x), dgate, dup, h, *tables
    )
    return blocks.gathered(dx), dw1.to(w1.dtype), dw2.to(w2.dtype), dw3.to(w3.dtype)


def _backward_fake(
    grad: torch.Tensor,
    x: torch.Tensor,
    counts: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> Four:
    return (
        x.new_empty(x.shape),
        w1.new_empty(w1.shape),
        w2.new_empty(w2.shape),
        w3.new_empty(w3.shape),
    )


forward_op = register("expert_mlp", _forward, _forward_fake)
backward_op = register("expert_mlp_backward", _backward, _backward_fake)


def _setup(ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs, *output[1:])


def _gradients(ctx: Any, grad: torch.Tensor, *_: object) -> tuple[torch.Tensor | None, ...]:
    dx, dw1, dw2, dw3 = backward_op(grad, *ctx.saved_tensors)
    return dx, None, dw1, dw2, dw3


forward_op.register_autograd(_gradients, setup_context=_setup)


def expert_mlp(
    x: torch.Tensor, counts: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> torch.Tensor:
    """The expert MLP of ``x`` (rows, D), float32 or bfloat16, all of one dtype but ``counts``.

    Raises:
        KernelError: other shapes or dtypes, counts that do not fit the rows, or a kernel that
            cannot be launched.
    """
    out: torch.Tensor = forward_op(x, counts, w1, w2, w3)[0]
    return out
