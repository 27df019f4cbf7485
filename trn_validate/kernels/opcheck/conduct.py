"""What an operator does beside computing: to its inputs, its memory, and from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trn_validate.check import Check, none_found
from trn_validate.errors import KernelError
from trn_validate.kernels import launches
from trn_validate.kernels.opcheck.subject import (
    Case,
    Subject,
    Tensors,
    copied,
    exact_results,
    labels,
    made,
    results,
    said,
)

CALLS = 3
"""Calls in a row: a second and a third call have crashed where a first did not
(github.com/aws-neuron/nkipy issue 21)."""


def none(name: str, found: list[str]) -> Check:
    """A check that nothing was found; the detail says what was."""
    return none_found(name, len(found), ", ".join(found))


def fault_of(action: Callable[[], object]) -> list[str]:
    """The error that ``action`` ends with, on one line, or nothing.

    Raises:
        KernelError: a kernel cannot be launched, so there is nothing to measure.
    """
    try:
        action()
    except KernelError:
        raise
    except Exception as error:  # torch has no one class for what a wrong operator meets
        return [f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"]
    return []


def running_name(subject: Subject, dtype: torch.dtype) -> str:
    """Name of the check that there is something to check."""
    return f"{subject.name} {said(dtype)}: runs forward and backward, fails"


def running_checks(subject: Subject, dtype: torch.dtype) -> tuple[Check, ...]:
    """torch lets the operator run; it refuses outputs that are inputs, for one."""
    inputs, grad = made(subject, Case("running", "small"), dtype)
    fault = fault_of(lambda: results(subject.function, inputs, grad))
    return (none(running_name(subject, dtype), fault),)


def conduct_checks(subject: Subject, dtype: torch.dtype, seed: int = 0) -> tuple[Check, ...]:
    """Launches, repeated calls, inputs, aliases, degenerate outputs and unwritten memory."""
    inputs, grad = made(subject, Case("conduct"), dtype, seed)
    where = f"{subject.name} {said(dtype)}"
    again, changed_name, shared_name, degenerate, unwritten = conduct_names(where)
    launches.reset()
    calls = [results(subject.function, inputs, grad)]
    counted = launches.counts()
    calls += [results(subject.function, inputs, grad) for _ in range(CALLS - 1)]
    exact = exact_results(subject, inputs, grad)
    changed, shared = _watched(subject, inputs, grad)
    names = labels(inputs)
    return (
        *launch_checks(subject, where, counted),
        none(again, _differ(calls, names)),
        none(changed_name, changed),
        none(shared_name, shared),
        none(degenerate, _degenerate(calls[0], exact, names)),
        none(unwritten, _unwritten(subject, inputs, grad, calls[0])),
    )


def conduct_names(where: str) -> tuple[str, ...]:
    """Names of what is not about launches."""
    return tuple(
        f"{where}: {what}"
        for what in (
            "differs from call to call",
            "changed inputs",
            "outputs that share memory",
            "degenerate outputs",
            "memory that nothing wrote",
        )
    )


def launch_names(subject: Subject, where: str) -> tuple[str, ...]:
    """Names of the checks of launches."""
    each = (f"{where}: launches of {name}" for name in subject.launches)
    return (*each, f"{where}: launches of another kernel")


def launch_checks(subject: Subject, where: str, counted: dict[str, int]) -> tuple[Check, ...]:
    """Each kernel launched as often as it has to be, and no other."""
    *names, other = launch_names(subject, where)
    expected = tuple(
        Check(
            name=name,
            measured=counted.get(kernel, 0),
            comparator="==",
            limit=count,
            source="derived",
        )
        for name, (kernel, count) in zip(names, subject.launches.items(), strict=True)
    )
    return (*expected, none(other, [one for one in counted if one not in subject.launches]))


def _differ(calls: list[Tensors], names: tuple[str, ...]) -> list[str]:
    """Outputs whose bits are not those of the first call."""
    return [
        f"{name} of call {number}"
        for number, call in enumerate(calls[1:], 2)
        for name, one, first in zip(names, call, calls[0], strict=True)
        if not same_bits(one, first)
    ]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Same shape, dtype and values; NaN equals NaN here, since other checks refuse it."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _watched(subject: Subject, inputs: Tensors, grad: torch.Tensor) -> tuple[list[str], list[str]]:
    """Inputs that the operator changed, and outputs that lie in memory of another tensor."""
    leaves = [copied(one).requires_grad_() for one in inputs]
    above = copied(grad)
    given = [*leaves, above]
    names = [*(f"input {number}" for number in range(len(leaves))), "gradient of the output"]
    before = [copied(one) for one in given]
    output = subject.function(*leaves)
    gradients = torch.autograd.grad(output, leaves, above)
    changed = [
        name
        for name, one, was in zip(names, given, before, strict=True)
        if not same_bits(one.detach(), was)
    ]
    seen = {_storage(one): name for one, name in zip(given, names, strict=True)}
    shared = []
    for name, one in zip(labels(inputs), (output, *gradients), strict=True):
        place = _storage(one)
        if place in seen:
            shared.append(f"{name} with {seen[place]}")
        seen[place] = name
    return changed, shared


def _storage(one: torch.Tensor) -> int:
    return one.untyped_storage().data_ptr()


def _degenerate(found: Tensors, exact: Tensors, names: tuple[str, ...]) -> list[str]:
    """Outputs that are zero, constant or not finite where the reference's are not."""
    return [
        f"{name} is {what}"
        for name, one, gold in zip(names, found, exact, strict=True)
        for what, is_so in _KINDS.items()
        if is_so(one) and not is_so(gold)
    ]


def _zero(one: torch.Tensor) -> bool:
    return not bool(one.any())


def _constant(one: torch.Tensor) -> bool:
    return one.numel() > 1 and bool((one == one.flatten()[0]).all())


def _not_finite(one: torch.Tensor) -> bool:
    return not bool(one.isfinite().all())


_KINDS = {"zero": _zero, "constant": _constant, "not finite": _not_finite}


def _unwritten(subject: Subject, inputs: Tensors, grad: torch.Tensor, usual: Tensors) -> list[str]:
    """Outputs that change, or are not finite, when torch fills new memory with NaN.

    It does so in deterministic mode (``torch.utils.deterministic.fill_uninitialized_memory``).
    """
    # A module that answers by properties, which its types do not say.
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = True
    try:
        found = results(subject.function, inputs, grad)
    finally:
        torch.use_deterministic_algorithms(before[0])
        settings.fill_uninitialized_memory = before[1]
    return [
        name
        for name, one, other in zip(labels(inputs), found, usual, strict=True)
        if _not_finite(one) or not same_bits(one, other)
    ]
