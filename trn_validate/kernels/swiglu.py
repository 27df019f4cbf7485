"""SwiGLU's element-wise part: out = silu(gate) * up, with silu(x) = x * sigmoid(x).

Backward, with g the gradient of out:

- dgate = g * up * silu'(gate), silu'(x) = sigmoid(x) * (1 + x * (1 - sigmoid(x)))
- dup = g * silu(gate)

Source: N. Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202. Computed in float32,
rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from trn_validate.errors import KernelError
from trn_validate.kernels.launches import launch, register
from trn_validate.kernels.namespace import Tensor, nisa, nki, nl
from trn_validate.kernels.tiles import COLUMNS, ROWS, load, piece, pieces

LAUNCHES = {"swiglu_forward": 1, "swiglu_backward": 1}
"""Launches of one forward and backward."""


@nki.jit
def forward_kernel(gate: Tensor, up: Tensor) -> Tensor:
    """Output like ``gate`` and ``up``, (rows, columns); cores take blocks of rows in turn."""
    rows, columns = gate.shape
    out = nl.ndarray(gate.shape, dtype=gate.dtype, buffer=nl.shared_hbm)
    for block in range(nl.program_id(0), pieces(rows, ROWS), nl.num_programs(0)):
        across = nl.ds(block * ROWS, piece(block, rows, ROWS))
        for chunk in range(pieces(columns, COLUMNS)):
            part = nl.ds(chunk * COLUMNS, piece(chunk, columns, COLUMNS))
            above = load(up[across, part])
            made = nl.ndarray(above.shape, dtype=out.dtype, buffer=nl.sbuf)
            gated = activated(nl.silu, load(gate[across, part]))
            nisa.tensor_tensor(dst=made, data1=gated, data2=above, op=nl.multiply)
            nisa.dma_copy(dst=out[across, part], src=made)
    return out


@nki.jit
def backward_kernel(grad: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """Outputs dgate and dup like ``gate`` and ``up``, (rows, columns)."""
    rows, columns = gate.shape
    dgate = nl.ndarray(gate.shape, dtype=gate.dtype, buffer=nl.shared_hbm)
    dup = nl.ndarray(up.shape, dtype=up.dtype, buffer=nl.shared_hbm)
    for block in range(nl.program_id(0), pieces(rows, ROWS), nl.num_programs(0)):
        across = nl.ds(block * ROWS, piece(block, rows, ROWS))
        for chunk in range(pieces(columns, COLUMNS)):
            part = nl.ds(chunk * COLUMNS, piece(chunk, columns, COLUMNS))
            above, gated = load(grad[across, part]), load(gate[across, part])
            made_gate, made_up = gradients(above, gated, load(up[across, part]), gate.dtype)
            nisa.dma_copy(dst=dgate[across, part], src=made_gate)
            nisa.dma_copy(dst=dup[across, part], src=made_up)
    return dgate, dup


def activated(op: Any, data: Tensor) -> Tensor:
    """A float32 tile in SBUF with ``op`` of ``data``."""
    made = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=made, op=op, data=data)
    return made


def gradients(grad: Tensor, gate: Tensor, up: Tensor, dtype: Any) -> Tensor:
    """Tiles of dgate and dup in ``dtype``, of one shape with all three; ``grad`` may be in PSUM."""
    made_up = nl.ndarray(gate.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=made_up, data1=grad, data2=activated(nl.silu, gate), op=nl.multiply)
    slope = activated(nl.silu_dx, gate)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=up, op=nl.multiply)
    made_gate = nl.ndarray(gate.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=made_gate, data1=grad, data2=slope, op=nl.multiply)
    return made_gate, made_up


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The same in plain torch, for any float dtype and any shape."""
    return F.silu(gate) * up


def _forward(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    if gate.dim() != 2 or gate.shape != up.shape or gate.dtype != up.dtype:
        raise KernelError(
            f"swiglu of {tuple(gate.shape)} {gate.dtype} and {tuple(up.shape)} {up.dtype}",
            todo="Give two (rows, columns) of one shape and dtype.",
        )
    return launch("swiglu_forward", forward_kernel, gate.contiguous(), up.contiguous())[0]


def _forward_fake(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate.new_empty(gate.shape)


def _backward(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = (grad.contiguous(), gate.contiguous(), up.contiguous())
    dgate, dup = launch("swiglu_backward", backward_kernel, *tensors)
    return dgate, dup


def _backward_fake(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


forward_op = register("swiglu", _forward, _forward_fake)
backward_op = register("swiglu_backward", _backward, _backward_fake)


def _setup(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dgate, dup = backward_op(grad, *ctx.saved_tensors)
    return dgate, dup


forward_op.register_autograd(_gradients, setup_context=_setup)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of two tensors (..., columns), float32 or bfloat16, of one shape and dtype.

    Raises:
        KernelError: other shapes or dtypes, or a kernel that cannot be launched.
    """
    columns = gate.shape[-1]
    found: torch.Tensor = forward_op(gate.reshape(-1, columns), up.reshape(-1, columns))
    return found.reshape(gate.shape)
