"""What the kernels share: sizes of tiles, and moves between memories.

These functions run inside kernels: the NKI compiler inlines them.
"""

from __future__ import annotations

from trn_validate.kernels.namespace import Tensor, nisa, nl

ROWS = 128
"""Rows of a block: the partitions of a tile. ``nl.tile_size.pmax`` is the same number, but the
layout of experts needs it outside kernels too."""

COLUMNS = 2048
"""Columns that element-wise instructions take at once: 8 KiB of float32 in each partition, so
that ten such tiles live beside whole rows."""

BANK = 512
"""Columns of a product: float32 in one PSUM bank (``nl.tile_size.psum_bank_fmax``)."""


def pieces(total: int, size: int) -> int:
    """How many tiles of ``size`` cover ``total``."""
    return (total + size - 1) // size


def piece(index: int, total: int, size: int) -> int:
    """Size of tile number ``index``; the last one may be smaller."""
    return min(size, total - index * size)


def load(source: Tensor) -> Tensor:
    """A tile in SBUF with what ``source`` (rows, columns) in HBM holds."""
    made = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=made, src=source)
    return made


def transposed(data: Tensor) -> Tensor:
    """A tile in SBUF with ``data`` (at most 128 by 128, in SBUF) transposed."""
    shape = (data.shape[1], data.shape[0])
    flipped = nl.ndarray(shape, dtype=data.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=flipped, data=data)
    made = nl.ndarray(shape, dtype=data.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=made, src=flipped)
    return made
