"""``nki.jit``: launch a kernel on one or two cores.

Source: api/nki/__init__.py, ``jit``; get-started/about/lnc.rst.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trn_validate.kernels.interpreter.dtypes import Values, carrier, float32, int32, rounded
from trn_validate.kernels.interpreter.program import Program, running
from trn_validate.kernels.interpreter.rules import LNC, broken, in_subset, require
from trn_validate.kernels.interpreter.tensor import MemoryRegion, NkiTensor


@dataclass(frozen=True)
class Host:
    """An array outside the kernel, with the dtype that NumPy cannot say."""

    values: Values
    dtype: str


class Kernel:
    """A kernel function; call it to run on one core, ``kernel[lnc](...)`` on ``lnc``."""

    def __init__(self, function: Callable[..., Any], lnc: int = 1) -> None:
        self.function = function
        self.lnc = lnc
        functools.update_wrapper(self, function)

    def __getitem__(self, lnc: int) -> Kernel:
        """The same kernel on ``lnc`` cores.

        Raises:
            KernelError: neither one nor two.
        """
        require(
            lnc in LNC, "cores of a launch", f"kernel {self.function.__name__}", f"{lnc!r} of {LNC}"
        )
        return Kernel(self.function, lnc)

    def __call__(self, *arguments: object) -> tuple[Host, ...]:
        """Run it. Arrays (float32, int32) and :class:`Host` become tensors that are only read.

        Raises:
            KernelError: a rule is broken.
        """
        inputs = [_tensor(number, one) for number, one in enumerate(arguments)]
        shared: list[NkiTensor] = []
        results = []
        for index in range(self.lnc):
            # Infinities and NaNs are values here, as on the device; nothing warns of them.
            with running(Program(index, self.lnc, shared)), np.errstate(all="ignore"):
                # No marks: inputs were complete before the launch.
                results.append(self._outputs(self.function(*inputs), shared))
        for index, other in enumerate(results[1:], 1):
            same = len(other) == len(results[0]) and all(map(_is, other, results[0]))
            require(
                same, "same outputs in every program", f"program {index}", f"{len(other)} returned"
            )
        return tuple(Host(one.values, one.dtype) for one in results[0])

    def _outputs(self, returned: object, shared: list[NkiTensor]) -> list[NkiTensor]:
        """The tensors that a program returned. Source: lnc.rst, "Final Notes": in shared HBM."""
        outputs: list[NkiTensor] = []
        for number, one in enumerate(returned if isinstance(returned, tuple) else (returned,)):
            operand = f"output {number} of {self.function.__name__}"
            if not isinstance(one, NkiTensor):
                raise broken("outputs in shared HBM", operand, type(one).__name__)
            known = any(_is(one, other) for other in shared)
            require(known, "outputs in shared HBM", operand, repr(one))
            outputs.append(one)
        return outputs


def _is(one: object, other: object) -> bool:
    return one is other


def _tensor(number: int, argument: object) -> object:
    """An input tensor; what is no array is passed on, as a constant of the compilation."""
    if isinstance(argument, np.ndarray):
        known = {np.dtype(np.float32): float32, np.dtype(np.int32): int32}
        in_subset(argument.dtype in known, f"argument {number}", argument.dtype, tuple(known))
        argument = Host(argument, known[argument.dtype])
    if not isinstance(argument, Host):
        return argument
    values = rounded(argument.values.astype(carrier(argument.dtype), copy=False), argument.dtype)
    return NkiTensor(
        values,
        argument.dtype,
        MemoryRegion.shared_hbm,
        name=f"argument {number}",
        writable=False,
    )


def jit(function: Callable[..., Any]) -> Kernel:
    """Make a function a kernel. Source: api/nki/__init__.py, ``jit``."""
    return Kernel(function)
