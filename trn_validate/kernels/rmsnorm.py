"""RMSNorm: y = x * r * w with r = 1 / sqrt(mean(x^2) + eps), over the last dim.

Backward, with n = x * r and g the gradient of y:

- dx = r * (g*w - n * mean(g*w*n))
- dw = sum over rows of g * n

Source: B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467; the
derivatives follow by the product rule. Sums are taken in float32, outputs are rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from trn_validate.errors import KernelError
from trn_validate.kernels.launches import launch, register
from trn_validate.kernels.namespace import Tensor, nisa, nki, nl
from trn_validate.kernels.tiles import BANK, COLUMNS, ROWS, load, piece, pieces

LAUNCHES = {"rmsnorm_forward": 1, "rmsnorm_backward": 1}
"""Launches of one forward and backward."""


@nki.jit
def forward_kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Outputs y like ``x`` (rows, columns) and r (rows, 1) in float32; ``weight`` is (1, columns).

    Blocks of rows go to the cores in turn. A whole row lies in SBUF, beside the weight: in
    float32 up to 20,000 columns.
    """
    rows = x.shape[0]
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    r = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    spread = load(weight.broadcast(0, min(ROWS, rows)))
    for block in range(nl.program_id(0), pieces(rows, ROWS), nl.num_programs(0)):
        part = nl.ds(block * ROWS, piece(block, rows, ROWS))
        forward_block(y[part], r[part], x[part], spread, eps)
    return y, r


def forward_block(y: Tensor, r: Tensor, x: Tensor, spread: Tensor, eps: float) -> None:
    """One block of at most 128 rows."""
    count, columns = x.shape
    data = load(x)
    inverse = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    shift = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=shift, value=eps)
    total = row_sums(data, data)
    # A tile holds eps, since NeuronCore-v2 takes no constant there and nki-library does so too.
    nisa.activation(dst=inverse, op=nl.rsqrt, data=total, scale=1.0 / columns, bias=shift)
    nisa.dma_copy(dst=r, src=inverse)
    for chunk in range(pieces(columns, COLUMNS)):
        part = nl.ds(chunk * COLUMNS, piece(chunk, columns, COLUMNS))
        normal = scaled(data[:, part], inverse)
        out = nl.ndarray(normal.shape, dtype=y.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out, data1=normal, data2=spread[0:count, part], op=nl.multiply)
        nisa.dma_copy(dst=y[:, part], src=out)


@nki.jit
def backward_kernel(grad: Tensor, x: Tensor, weight: Tensor, r: Tensor) -> Tensor:
    """Outputs dx like ``x`` (rows, columns) and dw like ``weight`` (1, columns).

    Cores take blocks of rows for dx and tiles of columns for dw. So ``grad`` and ``x`` are read
    twice, but no core adds to what another wrote, and one core or two give the same bits. Up to
    16,000 columns fit in float32.
    """
    rows, columns = x.shape
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dw = nl.ndarray((1, columns), dtype=weight.dtype, buffer=nl.shared_hbm)
    spread = load(weight.broadcast(0, min(ROWS, rows)))
    for block in range(nl.program_id(0), pieces(rows, ROWS), nl.num_programs(0)):
        part = nl.ds(block * ROWS, piece(block, rows, ROWS))
        input_block(dx[part], grad[part], x[part], spread, r[part])
    for chunk in range(nl.program_id(0), pieces(columns, BANK), nl.num_programs(0)):
        part = nl.ds(chunk * BANK, piece(chunk, columns, BANK))
        weight_columns(dw[:, part], grad[:, part], x[:, part], r)
    return dx, dw


def input_block(dx: Tensor, grad: Tensor, x: Tensor, spread: Tensor, r: Tensor) -> None:
    """dx of one block of at most 128 rows."""
    count, columns = x.shape
    above, data, inverse = load(grad), load(x), load(r)
    # mean(g*w*n) * n = x * (r^2 / columns) * sum(g*w*x): one factor for each row.
    factor = row_sums(data, above, (spread,))
    nisa.tensor_scalar(
        dst=factor,
        data=factor,
        op0=nl.multiply,
        operand0=inverse,
        op1=nl.multiply,
        operand1=1.0 / columns,
    )
    for chunk in range(pieces(columns, COLUMNS)):
        part = nl.ds(chunk * COLUMNS, piece(chunk, columns, COLUMNS))
        weighted = product(above[:, part], spread[0:count, part])
        along = nl.ndarray(weighted.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=along,
            data=data[:, part],
            op0=nl.multiply,
            operand0=inverse,
            op1=nl.multiply,
            operand1=factor,
        )
        nisa.tensor_tensor(dst=along, data1=weighted, data2=along, op=nl.subtract)
        out = nl.ndarray(weighted.shape, dtype=dx.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out, data=along, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=dx[:, part], src=out)


def weight_columns(dw: Tensor, grad: Tensor, x: Tensor, r: Tensor) -> None:
    """dw of at most 512 columns: r.T @ (g * x), summed over blocks of rows in one PSUM bank."""
    rows, columns = x.shape
    total = nl.ndarray((1, columns), dtype=nl.float32, buffer=nl.psum)
    for block in range(pieces(rows, ROWS)):
        part = nl.ds(block * ROWS, piece(block, rows, ROWS))
        both = product(load(grad[part]), load(x[part]))
        nisa.nc_matmul(dst=total, stationary=load(r[part]), moving=both, accumulate=block > 0)
    out = nl.ndarray((1, columns), dtype=dw.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=total)
    nisa.dma_copy(dst=dw, src=out)


def product(one: Tensor, other: Tensor) -> Tensor:
    """A float32 tile with the product of two tiles, element by element."""
    made = nl.ndarray(one.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=made, data1=one, data2=other, op=nl.multiply)
    return made


def scaled(data: Tensor, factor: Tensor) -> Tensor:
    """A float32 tile with each row of ``data`` times its ``factor`` (rows, 1)."""
    made = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=made, data=data, op0=nl.multiply, operand0=factor)
    return made


def row_sums(one: Tensor, other: Tensor, others: tuple[Tensor, ...] = ()) -> Tensor:
    """Float32 (rows, 1): sums of the products of two tiles, and of ``others`` too."""
    count, columns = one.shape
    chunks = pieces(columns, COLUMNS)
    partial = nl.ndarray((count, chunks), dtype=nl.float32, buffer=nl.sbuf)
    for chunk in range(chunks):
        part = nl.ds(chunk * COLUMNS, piece(chunk, columns, COLUMNS))
        both = product(one[:, part], other[:, part])
        for factor in others:
            both = product(both, factor[0:count, part])
        at = partial[:, nl.ds(chunk, 1)]
        nisa.tensor_reduce(dst=at, op=nl.add, data=both, axis=1, keepdims=True)
    made = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=made, op=nl.add, data=partial, axis=1, keepdims=True)
    return made


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in plain torch, for any float dtype and any leading dims."""
    return F.rms_norm(x, weight.shape, weight, eps)


def _forward(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() != 2 or weight.shape != x.shape[1:] or weight.dtype != x.dtype:
        raise KernelError(
            f"rmsnorm of {tuple(x.shape)} {x.dtype} by {tuple(weight.shape)} {weight.dtype}",
            todo="Give (rows, columns) and (columns,) of one dtype.",
        )
    row = weight.contiguous().view(1, -1)
    y, r = launch("rmsnorm_forward", forward_kernel, x.contiguous(), row, eps)
    return y, r


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty((x.shape[0], 1), dtype=torch.float32)


def _backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = (grad.contiguous(), x.contiguous(), weight.contiguous().view(1, -1), r.contiguous())
    dx, dw = launch("rmsnorm_backward", backward_kernel, *tensors)
    return dx, dw.reshape(-1)


def _backward_fake(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


forward_op = register("rmsnorm", _forward, _forward_fake)
backward_op = register("rmsnorm_backward", _backward, _backward_fake)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, weight, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1])


def _gradients(ctx: Any, grad: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
    dx, dw = backward_op(grad, *ctx.saved_tensors)
    return dx, dw, None


forward_op.register_autograd(_gradients, setup_context=_setup)


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of ``x`` (..., columns) by ``weight`` (columns,), float32 or bfloat16, one dtype.

    Raises:
        KernelError: other shapes or dtypes, or a kernel that cannot be launched.
    """
    y, _ = forward_op(x.reshape(-1, x.shape[-1]), weight, eps)
    found: torch.Tensor = y.reshape(x.shape)
    return found
