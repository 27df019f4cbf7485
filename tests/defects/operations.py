"""Faults of single operations, put where a probe computes on the device."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from trn_validate.operation import OperationSpec
from trn_validate.workload import ops

Change = Callable[[list[torch.Tensor]], object]


def _spoil(change: Change) -> None:
    """Let the device give something else; the list holds the outputs and then the gradients."""
    original = ops.on_device

    def on_device(*arguments: Any) -> tuple[torch.Tensor, ...]:
        found = [one.clone() for one in original(*arguments)]
        change(found)
        return tuple(found)

    ops.on_device = on_device


def scaled(spec: OperationSpec) -> None:
    """One per cent too much."""
    _spoil(lambda found: found[0].mul_(1.01))


def zero(spec: OperationSpec) -> None:
    """All zero and no error."""
    _spoil(lambda found: found[0].zero_())


def constant(spec: OperationSpec) -> None:
    """The first value everywhere."""
    _spoil(lambda found: found[0].copy_(found[0].flatten()[0].expand(found[0].shape)))


def one_element(spec: OperationSpec) -> None:
    """A single element is wrong and finite."""

    def change(found: list[torch.Tensor]) -> None:
        largest = found[0].abs().argmax()
        found[0].flatten()[largest] *= 1.25

    _spoil(change)


def shifted(spec: OperationSpec) -> None:
    """Every value is there, one place further."""
    _spoil(lambda found: found[0].copy_(found[0].roll(1, -1)))


def not_a_number(spec: OperationSpec) -> None:
    """One element is no number."""
    _spoil(lambda found: found[0].flatten()[3:4].fill_(float("nan")))


def half_gradient(spec: OperationSpec) -> None:
    """The output is right, and the last gradient half of what it has to be."""
    _spoil(lambda found: found[-1].mul_(0.5))


def no_gradient(spec: OperationSpec) -> None:
    """The output is right, and the last gradient zero."""
    _spoil(lambda found: found[-1].zero_())


def low_precision(spec: OperationSpec) -> None:
    """float32 is computed in bfloat16."""
    _spoil(lambda found: [one.copy_(one.bfloat16()) for one in found if one.is_floating_point()])


def other_indices(spec: OperationSpec) -> None:
    """The values are right, and their places those of others."""
    _spoil(lambda found: found[1].copy_(found[1].roll(1, -1)))


def thirty_two_bits(spec: OperationSpec) -> None:
    """Whole numbers are kept in 32 bits."""

    def change(found: list[torch.Tensor]) -> None:
        for one in found:
            if one.dtype == torch.int64:
                one.copy_(one.int().long())

    _spoil(change)


def lower_type(spec: OperationSpec) -> None:
    """The result has another dtype than it has to have."""

    def change(found: list[torch.Tensor]) -> None:
        found[0] = found[0].int() if found[0].dtype == torch.int64 else found[0].half()

    _spoil(change)


def step_lost(spec: OperationSpec) -> None:
    """The optimizer's step changes nothing."""
    _spoil(lambda found: found[0].zero_())


def refused(spec: OperationSpec) -> None:
    """The device has no such operation."""

    def change(found: list[torch.Tensor]) -> None:
        raise NotImplementedError("Operation aten::topk is not implemented for Neuron")

    _spoil(change)


def fallen_back(spec: OperationSpec) -> None:
    """The result is right, and it was computed on the CPU."""
    module = SimpleNamespace(get_fallback_ops=lambda: ["aten::topk"])
    torch.neuron = module  # type: ignore[attr-defined]  # put there as a backend does


def crashing(spec: OperationSpec) -> None:
    """The process dies."""
    _spoil(lambda found: os.kill(os.getpid(), signal.SIGSEGV))


def hanging(spec: OperationSpec) -> None:
    """The operation does not come back."""
    _spoil(lambda found: time.sleep(600))
