"""``nki.language``: memory, indices, the grid, and the names of operators.

Loops are Python's ``range``: ``affine_range``, ``sequential_range`` and ``static_range`` are
documented as deprecated aliases of it.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

import numpy as np

from trn_validate.kernels.interpreter import program
from trn_validate.kernels.interpreter.dtypes import (
    ITEM_SIZES,
    bfloat16,
    float32,
    int32,
    poisoned,
)
from trn_validate.kernels.interpreter.operators import (
    add,
    copy,
    multiply,
    rsqrt,
    silu,
    silu_dx,
    subtract,
)
from trn_validate.kernels.interpreter.rules import (
    MOVING_FREE,
    PARTITIONS,
    PSUM_BANK_BYTES,
    PSUM_BANKS,
    STATIONARY_FREE,
    in_subset,
    require,
)
from trn_validate.kernels.interpreter.tensor import (
    ON_CHIP,
    MemoryRegion,
    NkiTensor,
    ds,
)

__all__ = [
    "MemoryRegion",
    "NkiTensor",
    "add",
    "bfloat16",
    "copy",
    "ds",
    "float32",
    "hbm",
    "int32",
    "multiply",
    "ndarray",
    "num_programs",
    "private_hbm",
    "program_id",
    "psum",
    "rsqrt",
    "sbuf",
    "shared_hbm",
    "silu",
    "silu_dx",
    "subtract",
    "tile_size",
]

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
hbm = private_hbm

tile_size = SimpleNamespace(
    pmax=PARTITIONS,
    psum_bank_fmax=PSUM_BANK_BYTES // 4,
    psum_bank_fmax_bytes=PSUM_BANK_BYTES,
    psum_num_banks=PSUM_BANKS,
    gemm_stationary_fmax=STATIONARY_FREE,
    gemm_moving_fmax=MOVING_FREE,
)


def ndarray(
    shape: tuple[int, ...],
    dtype: str,
    buffer: MemoryRegion = sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Make a tensor that holds poison until it is written.

    On chip it has at least two dims, at most 128 partitions, and fits beside what lives. In PSUM
    it fits one bank: NKI has tensors of several, but a product writes to one (``nc_matmul``,
    "Tile size"), and a tensor in one bank cannot cross into the next. In shared memory all
    programs of the launch get the same tensor. Guess: they are matched by the order of
    allocation (get-started/about/lnc.rst allocates the output once in every program).

    Raises:
        KernelError: a rule of memory is broken.
    """
    in_subset(dtype in ITEM_SIZES, f"ndarray {name}", dtype, tuple(ITEM_SIZES))
    in_subset(isinstance(buffer, MemoryRegion), f"ndarray {name}", buffer, tuple(MemoryRegion))
    in_subset(address is None, f"ndarray {name}", "address=", ("none",))
    operand = f"ndarray {name or shape} in {buffer.value}"
    require(min(shape, default=0) > 0, "sizes above zero", operand, f"{shape}")
    if buffer is shared_hbm:
        return _shared(shape, dtype, name, operand)
    tensor = NkiTensor(poisoned(shape, dtype), dtype, buffer, name=name)
    if buffer in ON_CHIP:
        require(len(shape) >= 2, "at least two dims on chip", operand, f"{len(shape)}")
        require(
            shape[0] <= PARTITIONS,
            "partition dimension",
            operand,
            f"{shape[0]} of at most {PARTITIONS}",
        )
        _take(tensor, operand)
    if buffer is psum:
        tensor.marks = np.zeros(shape, np.uint8)
    return tensor


def _take(tensor: NkiTensor, operand: str) -> None:
    """Account for a tensor on chip: PSUM is given out in whole banks."""
    used = prod(tensor.shape[1:]) * ITEM_SIZES[tensor.dtype]
    now = program.current()
    if tensor.buffer is psum:
        require(
            used <= PSUM_BANK_BYTES,
            "one PSUM bank",
            operand,
            f"{used} bytes a partition of at most {PSUM_BANK_BYTES}",
        )
        now.psum.take(tensor.storage, 1, operand)
    else:
        now.sbuf.take(tensor.storage, used, operand)


def _shared(shape: tuple[int, ...], dtype: str, name: str, operand: str) -> NkiTensor:
    now = program.current()
    place = now.next_shared
    now.next_shared += 1
    if place == len(now.shared):
        require(now.index == 0, "same allocations in every program", operand, f"number {place}")
        marks = np.zeros(shape, np.uint8)
        tensor = NkiTensor(poisoned(shape, dtype), dtype, shared_hbm, name=name, marks=marks)
        now.shared.append(tensor)
    found = now.shared[place]
    require(
        (found.shape, found.dtype) == (shape, dtype),
        "same allocations in every program",
        operand,
        f"{shape} {dtype}, in program 0 {found.shape} {found.dtype}",
    )
    return found


def program_id(axis: int = 0) -> int:
    """Index of this program. Source: get-started/about/lnc.rst, "Programming for ..."."""
    in_subset(axis == 0, "program_id", f"axis {axis}", (0,))
    return program.current().index


def num_programs(axes: int = 0) -> int:
    """Number of programs of the launch. Source: as :func:`program_id`."""
    in_subset(axes == 0, "num_programs", f"axes {axes}", (0,))
    return program.current().count
