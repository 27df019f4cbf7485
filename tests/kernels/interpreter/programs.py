"""Small kernels around one instruction, and the errors that they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from trn_validate.errors import KernelError
from trn_validate.kernels.interpreter import Host, jit
from trn_validate.kernels.interpreter import isa as nisa
from trn_validate.kernels.interpreter import language as nl

Tensor = nl.NkiTensor


def tile(
    shape: tuple[int, ...],
    dtype: str = nl.float32,
    buffer: nl.MemoryRegion = nl.sbuf,
    fill: float | None = 1.0,
) -> Tensor:
    """A tile on chip, filled unless ``fill`` is None."""
    made = nl.ndarray(shape, dtype, buffer)
    if fill is not None:
        nisa.memset(made, fill)
    return made


def loaded(source: Tensor) -> Tensor:
    """A tile in SBUF with what ``source`` holds."""
    made = nl.ndarray(source.shape, source.dtype, nl.sbuf)
    nisa.dma_copy(made, source)
    return made


def stored(tensor: Tensor) -> Tensor:
    """An output with what a tile in SBUF holds."""
    out = nl.ndarray(tensor.shape, tensor.dtype, nl.shared_hbm)
    nisa.dma_copy(out, tensor)
    return out


def run(body: Callable[..., object], *arguments: object, lnc: int = 1) -> tuple[Host, ...]:
    """Outputs of ``body`` as a kernel."""
    return jit(body)[lnc](*arguments)


def refused(body: Callable[[], object], *parts: str, lnc: int = 1) -> None:
    """Run ``body`` as a kernel and see the error that has every one of ``parts``.

    The parts have to name a rule, an operand and sizes, so at least three are asked for.
    """
    assert len(parts) >= 3

    def kernel() -> Tensor:
        body()
        return stored(tile((1, 1)))

    assert_says(lambda: run(kernel, lnc=lnc), parts)


def assert_says(action: Callable[[], object], parts: Sequence[str]) -> None:
    """``action`` ends with a KernelError whose text has every part."""
    with pytest.raises(KernelError) as caught:
        action()
    for part in parts:
        assert part in str(caught.value)
