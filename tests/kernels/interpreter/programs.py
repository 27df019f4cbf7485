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


def refusal(body: Callable[[], object], lnc: int = 1) -> str:
    """Run ``body`` as a kernel and give the text of the KernelError that it ends with."""

    def kernel() -> Tensor:
        body()
        return stored(tile((1, 1)))

    with pytest.raises(KernelError) as caught:
        run(kernel, lnc=lnc)
    return str(caught.value)


def absent(parts: Sequence[str], text: str) -> list[str]:
    """Those of ``parts`` that are not in ``text``.

    The parts have to name a rule, an operand and sizes, so at least three are asked for.
    """
    assert len(parts) >= 3
    return [part for part in parts if part not in text]


def assert_says(action: Callable[[], object], parts: Sequence[str]) -> None:
    """``action`` ends with a KernelError whose text has every part."""
    with pytest.raises(KernelError) as caught:
        action()
    for part in parts:
        assert part in str(caught.value)
