"""Data types: what carries each in NumPy, its size, its rounding, and its poison.

NumPy has no bfloat16. A bfloat16 tensor is carried in float32 and every value that is written
into it is rounded first, so it never holds a value that bfloat16 could not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
"""float32 or int32, see :func:`carrier`."""

float32 = "float32"
bfloat16 = "bfloat16"
int32 = "int32"

FLOATS = (float32, bfloat16)
ITEM_SIZES = {float32: 4, bfloat16: 2, int32: 4}
"""Bytes of one element.

Source: api/nki/language/__init__.py, ``DType`` (a dtype is a text there too).
"""

INT_POISON = np.iinfo(np.int32).min
"""What a new integer tensor holds. ``nki.simulate`` fills with 4 (guides/nki_simulator.rst,
"Uninitialized Memory Detection"), which may be a valid index; this value never is."""


def carrier(dtype: str) -> type[np.float32] | type[np.int32]:
    """NumPy type that carries ``dtype``."""
    return np.int32 if dtype == int32 else np.float32


def rounded(values: Values, dtype: str) -> Values:
    """``values`` (any shape) as ``dtype`` can hold them: to nearest, ties to even.

    Source: guides/nki_simulator.rst, "Precise Floating-Point Mode".
    """
    if dtype != bfloat16:
        return values.astype(carrier(dtype), copy=False)
    floats = np.ascontiguousarray(values, dtype=np.float32)
    bits = floats.view(np.uint32)
    # Half of the last kept place, less one when that place is even: a carry is a round up.
    up = bits >> np.uint32(16)
    up &= np.uint32(1)
    up += np.uint32(0x7FFF)
    up += bits
    up &= np.uint32(0xFFFF0000)
    kept = up.view(np.float32)
    # The carry would turn some NaNs into infinity or zero.
    np.copyto(kept, np.float32(np.nan), where=np.isnan(floats))
    return kept


def poisoned(shape: tuple[int, ...], dtype: str) -> Values:
    """New values of ``shape`` that nothing has written: NaN, or :data:`INT_POISON`.

    Source: guides/nki_simulator.rst, "Uninitialized Memory Detection".
    """
    poison = INT_POISON if dtype == int32 else np.nan
    return np.full(shape, poison, dtype=carrier(dtype))
