"""``nki.isa`` of the Tensor Engine: products and transposes.

Source: api/nki/isa/__init__.py, ``nc_matmul`` and ``nc_transpose``;
guides/architecture/trainium_inferentia2_arch.rst, "Tile Size".
"""

from __future__ import annotations

import numpy as np

from trn_validate.kernels.interpreter.dtypes import float32
from trn_validate.kernels.interpreter.operands import MATMUL, floats, tile, write
from trn_validate.kernels.interpreter.rules import (
    MOVING_FREE,
    PARTITIONS,
    STATIONARY_FREE,
    in_subset,
    require,
)
from trn_validate.kernels.interpreter.tensor import MemoryRegion, NkiTensor

_SBUF, _PSUM = (MemoryRegion.sbuf,), (MemoryRegion.psum,)


def nc_matmul(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, accumulate: bool | None = None
) -> None:
    """``dst = stationary.T @ moving`` or ``dst += ...``, accumulated in float32.

    The contraction lies on the partitions of both inputs, in SBUF; ``dst`` is float32 and in
    one bank of PSUM. ``accumulate=False`` overwrites; True adds, only to what a product wrote;
    None overwrites what nothing wrote and adds to what a product wrote.

    Raises:
        KernelError: a limit of the engine is broken, or a sum starts from what no product wrote.
    """
    tile("nc_matmul dst", dst, _PSUM)
    tile("nc_matmul stationary", stationary, _SBUF)
    tile("nc_matmul moving", moving, _SBUF)
    _check_inputs(stationary, moving)
    shape = (stationary.shape[1], moving.shape[1])
    require(dst.shape == shape, "product shape", "nc_matmul dst", f"{dst.shape}, not {shape}")
    require(dst.dtype == float32, "product dtype", "nc_matmul dst", f"{dst.dtype}, not {float32}")
    product = floats(stationary).T @ floats(moving)
    if _adds(dst, accumulate):
        product = floats(dst) + product
    write("nc_matmul dst", dst, product, MATMUL)


def _check_inputs(stationary: NkiTensor, moving: NkiTensor) -> None:
    for name, one, limit in (
        ("stationary", stationary, STATIONARY_FREE),
        ("moving", moving, MOVING_FREE),
    ):
        operand = f"nc_matmul {name}"
        in_subset(one.ndim == 2, operand, f"{one.ndim} dims", (2,))
        require(
            one.shape[1] <= limit,
            f"{name} free size",
            operand,
            f"{one.shape[1]} of at most {limit}",
        )
    require(
        stationary.shape[0] == moving.shape[0],
        "contraction on the partitions",
        "nc_matmul moving",
        f"{moving.shape[0]} partitions against {stationary.shape[0]} of stationary",
    )
    # "if one of the input tiles is float32, the other tile must also be" (Data types).
    require(
        (stationary.dtype == float32) == (moving.dtype == float32),
        "float32 on both sides or on none",
        "nc_matmul moving",
        f"{moving.dtype} against {stationary.dtype}",
    )


def _adds(dst: NkiTensor, accumulate: bool | None) -> bool:
    """Whether a product is added. "Accumulation mode" and the note below it."""
    if accumulate is False:
        return False
    assert dst.marks is not None
    by_product = int(np.count_nonzero(dst.marks == MATMUL))
    if accumulate is None and not dst.marks.any():
        return False
    require(
        by_product == dst.size,
        "accumulate on a product",
        "nc_matmul dst",
        f"a product wrote {by_product} of {dst.size} elements",
    )
    return True


def nc_transpose(dst: NkiTensor, data: NkiTensor) -> None:
    """Swap partitions and free dim: at most [128, 128], from SBUF to PSUM, same dtype.

    The Vector Engine, which transposes up to [32, 32] in any memory, is not interpreted.

    Raises:
        KernelError: a limit of the engine is broken.
    """
    tile("nc_transpose dst", dst, _PSUM)
    tile("nc_transpose data", data, _SBUF)
    in_subset(data.ndim == 2, "nc_transpose data", f"{data.ndim} dims", (2,))
    require(
        data.shape[1] <= PARTITIONS,
        "transpose size",
        "nc_transpose data",
        f"{data.shape} of at most ({PARTITIONS}, {PARTITIONS})",
    )
    shape = (data.shape[1], data.shape[0])
    require(dst.shape == shape, "transpose shape", "nc_transpose dst", f"{dst.shape}, not {shape}")
    require(
        dst.dtype == data.dtype,
        "transpose dtype",
        "nc_transpose dst",
        f"{dst.dtype}, not {data.dtype}",
    )
    # It is a product by an identity matrix, so the mark is that of a product.
    write("nc_transpose dst", dst, data.values.T, MATMUL)
