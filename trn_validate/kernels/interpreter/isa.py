"""``nki.isa``: the instructions, destination first.

Source of each signature and rule: api/nki/isa/__init__.py, the function of the same name, and
its heading where one is named. Arguments that only place or schedule (``engine``, ``priority``,
``name`` ...) are left out where no kernel of ours passes them.
"""

from __future__ import annotations

import numpy as np

from trn_validate.kernels.interpreter.dtypes import int32
from trn_validate.kernels.interpreter.operands import (
    floats,
    place,
    read,
    same_size,
    scalar,
    tile,
    write,
)
from trn_validate.kernels.interpreter.operators import Operator, activated, add, binary
from trn_validate.kernels.interpreter.rules import in_subset, require
from trn_validate.kernels.interpreter.tensor import HBM, MemoryRegion, NkiTensor
from trn_validate.kernels.interpreter.tensor_engine import nc_matmul, nc_transpose

__all__ = [
    "activation",
    "dma_copy",
    "memset",
    "nc_matmul",
    "nc_transpose",
    "tensor_copy",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_tensor",
]

_DMA = (*HBM, MemoryRegion.sbuf)


def dma_copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy between HBM and SBUF, as many elements; a float dtype may change on the way.

    "Memory types", "Data types", "Tile size". Guess: elements go in row-major order where the
    shapes differ.

    Raises:
        KernelError: a tensor in PSUM, other numbers of elements, or an integer made a float.
    """
    place("dma_copy dst", dst, _DMA)
    place("dma_copy src", src, _DMA)
    require(
        dst.size == src.size, "as many elements", "dma_copy dst", f"{dst.shape} against {src.shape}"
    )
    in_subset(
        (dst.dtype == int32) == (src.dtype == int32),
        "dma_copy dst",
        f"{src.dtype} to {dst.dtype}",
        ("float to float", "int32 to int32"),
    )
    write("dma_copy dst", dst, read(src))


def tensor_copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy on chip. First paragraph: same partitions, and as many elements in each.

    Raises:
        KernelError: a tensor in HBM, or other sizes.
    """
    tile("tensor_copy dst", dst)
    tile("tensor_copy src", src)
    same_size("tensor_copy dst", dst, src)
    write("tensor_copy dst", dst, src.values)


def memset(dst: NkiTensor, value: float) -> None:
    """Fill a tile on chip with a constant.

    Raises:
        KernelError: a tensor in HBM, or a value that is no number.
    """
    tile("memset dst", dst)
    filler = scalar("memset value", value, dst)
    write("memset dst", dst, np.full(dst.shape, filler, np.float32))


def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> None:
    """``data1 op data2``, element by element, in float32; the inputs are not both in PSUM.

    Raises:
        KernelError: other sizes, both inputs in PSUM, or an operator that is not interpreted.
    """
    function = binary(op, "tensor_tensor op")
    tile("tensor_tensor dst", dst)
    tile("tensor_tensor data1", data1)
    tile("tensor_tensor data2", data2)
    same_size("tensor_tensor data2", data2, data1)
    same_size("tensor_tensor dst", dst, data1)
    in_psum = [one.buffer is MemoryRegion.psum for one in (data1, data2)]
    require(
        not all(in_psum),
        "inputs not both in PSUM",
        "tensor_tensor data2",
        f"{data1!r} and {data2!r}",
    )
    other = floats(data2).reshape(data1.shape)
    write("tensor_tensor dst", dst, function(floats(data1), other))


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: float | NkiTensor,
    reverse0: bool = False,
    op1: Operator | None = None,
    operand1: float | NkiTensor | None = None,
    reverse1: bool = False,
) -> None:
    """``(data op0 operand0) op1 operand1`` in float32.

    An operand is a constant or a float32 tile (partitions, 1), which broadcasts along the free
    dims. ``reverse`` puts the operand first.

    Raises:
        KernelError: an operand of another shape or dtype, or other sizes of ``dst``.
    """
    tile("tensor_scalar dst", dst)
    tile("tensor_scalar data", data)
    same_size("tensor_scalar dst", dst, data)
    require(
        (op1 is None) == (operand1 is None),
        "op1 and operand1 together",
        "tensor_scalar operand1",
        f"op1 is {op1!r}, operand1 is {operand1!r}",
    )
    result = floats(data)
    for number, op, operand, reverse in (
        (0, op0, operand0, reverse0),
        (1, op1, operand1, reverse1),
    ):
        if op is None:
            continue
        function = binary(op, f"tensor_scalar op{number}")
        other = scalar(f"tensor_scalar operand{number}", operand, data)
        result = function(other, result) if reverse else function(result, other)
    write("tensor_scalar dst", dst, result)


def tensor_reduce(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    axis: int | tuple[int, ...],
    negate: bool = False,
    keepdims: bool = False,
) -> None:
    """Sum over the last free dims, in float32; never over partitions.

    Raises:
        KernelError: axes that are not the last free ones, other sizes of ``dst``, or an
            operator other than add.
    """
    tile("tensor_reduce dst", dst)
    tile("tensor_reduce data", data)
    in_subset(op is add, "tensor_reduce op", op, (add,))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    last = tuple(range(data.ndim - len(axes), data.ndim))
    require(
        len(axes) > 0 and axes == last and 0 not in axes,
        "reduce the last free dims",
        "tensor_reduce axis",
        f"{axes} of {data.shape}",
    )
    total = np.sum(floats(data), axis=axes, keepdims=keepdims, dtype=np.float32)
    result = np.asarray(-total if negate else total)
    require(
        (dst.shape[0], dst.size) == (data.shape[0], result.size),
        "size of the result",
        "tensor_reduce dst",
        f"{dst.shape} for {result.shape}",
    )
    write("tensor_reduce dst", dst, result)


def activation(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
) -> None:
    """``op(data * scale + bias)`` in float32.

    ``scale`` and ``bias`` are constants or tiles (partitions, 1), "Layout". A bias of another
    dtype than float32 is documented, but not interpreted.

    Raises:
        KernelError: other sizes, or an activation that is not interpreted.
    """
    tile("activation dst", dst)
    tile("activation data", data)
    same_size("activation dst", dst, data)
    value = floats(data) * scalar("activation scale", scale, data)
    if bias is not None:
        value = value + scalar("activation bias", bias, data)
    write("activation dst", dst, activated(op, value, "activation op"))
