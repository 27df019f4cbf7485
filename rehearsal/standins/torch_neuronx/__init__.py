"""Stands in for the vendor's package of this name, in a rehearsal alone.

The names are those that the product asks of it. Source: torch/guides/how-to-work-with-nki.rst of
the Neuron documentation; a user's copy of its pre-release for the tracking of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch_neuron_rehearsal import _device

__version__ = "0.1.0+rehearsal"


def get_fallback_ops() -> list[str]:
    """Operations that ran on the CPU since they were last cleared."""
    return sorted(_device.fell_back())


def get_executed_ops() -> dict[str, int]:
    """Calls of every operation since they were last cleared."""
    return dict(_device.calls())


def clear_op_tracking() -> None:
    """Forget both."""
    _device.clear_calls()


def nki_op(name: str, mutates_args: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Register an operator whose body calls kernels, and is its own fake."""

    def register(body: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(name, body, mutates_args=tuple(mutates_args))
        operator.register_fake(body)
        return operator

    return register
