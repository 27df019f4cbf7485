"""Checks that every instruction makes of its operands, and how it reads and writes them."""

from __future__ import annotations

from math import prod

import numpy as np

from trn_validate.kernels.interpreter import program
from trn_validate.kernels.interpreter.dtypes import FLOATS, Values, float32, rounded
from trn_validate.kernels.interpreter.operators import Floats
from trn_validate.kernels.interpreter.rules import broken, in_subset, partition_start, require
from trn_validate.kernels.interpreter.tensor import HBM, ON_CHIP, MemoryRegion, NkiTensor

MATMUL, OTHER = 1, 2
"""Marks of PSUM: what wrote an element."""


def place(operand: str, tensor: object, buffers: tuple[MemoryRegion, ...]) -> NkiTensor:
    """``tensor``, checked to be one, and to lie where the instruction can reach it.

    Raises:
        KernelError: it is none, or lies elsewhere, or starts at a partition that it may not.
    """
    if not isinstance(tensor, NkiTensor):
        raise broken("a tensor", operand, f"{type(tensor).__name__}")
    if tensor.buffer not in buffers:
        names = " or ".join(one.value for one in buffers)
        raise broken("buffer", operand, f"{tensor!r}, not in {names}")
    if tensor.buffer in ON_CHIP:
        partition_start(operand, tensor.start, tensor.shape[0])
    return tensor


def tile(operand: str, tensor: object, buffers: tuple[MemoryRegion, ...] = ON_CHIP) -> NkiTensor:
    """A float tile on chip, as the compute engines take it.

    Raises:
        KernelError: as :func:`place`, or a dtype that is no float.
    """
    found = place(operand, tensor, buffers)
    in_subset(found.dtype in FLOATS, operand, found.dtype, FLOATS)
    return found


def same_size(operand: str, tensor: NkiTensor, data: NkiTensor) -> None:
    """As many partitions, and as many elements in each, as ``data``: no broadcasting.

    Source: api/nki/isa/__init__.py, ``tensor_tensor`` (first paragraph), ``tensor_copy``,
    ``activation`` ("Tile size"); release-notes/components/nki.rst ("Broadcasting").

    Raises:
        KernelError: the sizes differ.
    """
    mine, its = (_per_partition(one) for one in (tensor, data))
    require(mine == its, "same size, no broadcasting", operand, f"{mine} against {its} of the data")


def _per_partition(tensor: NkiTensor) -> tuple[int, int]:
    return tensor.shape[0], prod(tensor.shape[1:])


def read(tensor: NkiTensor) -> Values:
    """Values of ``tensor``, as a view.

    Raises:
        KernelError: another program wrote an element of it.
    """
    if tensor.buffer in HBM and tensor.marks is not None:
        _own(tensor, "read")
    return tensor.values


def floats(tensor: NkiTensor) -> Floats:
    """Values of a float tile: engines compute in float32 whatever the tile holds.

    Source: api/nki/isa/__init__.py, "Data types" of each instruction.
    """
    values: Floats = tensor.values.astype(np.float32, copy=False)
    return values


def write(operand: str, tensor: NkiTensor, values: Values, mark: int = OTHER) -> None:
    """Put ``values`` (as many elements as ``tensor``) into it, rounded once to its dtype.

    Raises:
        KernelError: an input of the kernel or a broadcast view, or an element that another
            program wrote.
    """
    # Our rule, not NKI's: the operators that launch kernels declare that they mutate nothing.
    require(tensor.writable, "inputs and broadcast views are only read", operand, tensor)
    if tensor.buffer in HBM and tensor.marks is not None:
        _own(tensor, "written")
        tensor.marks[...] = program.current().index + 1
    elif tensor.marks is not None:
        tensor.marks[...] = mark
    tensor.values[...] = rounded(values, tensor.dtype).reshape(tensor.shape)


def _own(tensor: NkiTensor, done: str) -> None:
    """Programs run at once on the device, and the interpreted part has no barrier.

    Source: api/nki/isa/__init__.py, ``core_barrier``.
    """
    mine = program.current().index + 1
    marks = tensor.marks
    assert marks is not None
    others = int(np.count_nonzero((marks != 0) & (marks != mine)))
    require(
        others == 0,
        "no element of two programs",
        tensor,
        f"{others} of {tensor.size} elements {done} by program {mine - 1} were written by another",
    )


def scalar(operand: str, value: object, data: NkiTensor) -> Floats | np.float32:
    """A constant, or a float32 tile (partitions of ``data``, 1) as it broadcasts over ``data``.

    Source: api/nki/isa/__init__.py, ``tensor_scalar`` and ``activation``.

    Raises:
        KernelError: neither.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | NkiTensor):
        raise broken("a number or a tile", operand, type(value).__name__)
    if not isinstance(value, NkiTensor):
        return np.float32(value)
    found = tile(operand, value)
    shape = (data.shape[0], 1)
    require(found.shape == shape, "operand shape", operand, f"{found.shape}, not {shape}")
    require(found.dtype == float32, "operand dtype", operand, f"{found.dtype}, not {float32}")
    return floats(found).reshape(-1, *(1,) * (data.ndim - 1))
