"""Stands in for the vendor's NKI, in a rehearsal alone: kernels run in the product's interpreter.

They take and give tensors of the device, as the vendor's do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trn_validate.kernels import interpreter
from trn_validate.kernels.interpreter import Host


class Kernel:
    """A kernel function; ``kernel[lnc](...)`` runs it on ``lnc`` cores."""

    def __init__(self, function: Callable[..., Any], lnc: int = 1) -> None:
        self.function = function
        self.lnc = lnc

    def __getitem__(self, lnc: int) -> Kernel:
        return Kernel(self.function, lnc)

    def __call__(self, *arguments: Any) -> Any:
        """Run on tensors; with fake ones, tell shapes and dtypes of the outputs alone."""
        from torch._subclasses.fake_tensor import is_fake

        outputs = self._traced if any(map(is_fake, arguments)) else self._run
        found = outputs(arguments)
        return found if len(found) > 1 else found[0]

    def _run(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        from trn_validate.kernels.providers import Interpreter

        found: tuple[Any, ...] = Interpreter("").run(
            interpreter.jit(self.function), self.lnc, arguments
        )
        return found

    def _traced(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        import torch

        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        inputs = [_filled(one) if isinstance(one, torch.Tensor) else one for one in arguments]
        outputs = interpreter.jit(self.function)[self.lnc](*inputs)
        return tuple(
            tensors[0].new_empty(one.values.shape, dtype=getattr(torch, one.dtype))
            for one in outputs
        )


def _filled(tensor: Any) -> Host:
    """Values of the same shape; indices are zero, so that every one of them is in range."""
    name = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(int(size) for size in tensor.shape)
    if tensor.is_floating_point():
        return Host(np.ones(shape, np.float32), name)
    return Host(np.zeros(shape, np.int32), name)


def jit(function: Callable[..., Any]) -> Kernel:
    """Make a function a kernel."""
    return Kernel(function)
