"""Whether torch can rely on what an operator was registered with.

``torch.library.opcheck`` compares schema, fake and autograd with what the operator does; it
never sees a wrong value or a wrong gradient, and some faults only for one dtype or for inputs
that are not contiguous.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from trn_validate.check import Check
from trn_validate.kernels.opcheck.conduct import fault_of, none, same_bits
from trn_validate.kernels.opcheck.subject import (
    Case,
    Subject,
    copied,
    labels,
    made,
    results,
    said,
)

STEP, ABSOLUTE, RELATIVE = 1e-2, 2e-3, 1e-2
"""Of gradcheck in float32, which no provider exceeds: the error of a difference is the rounding
of two values over the step (1e-7 / 1e-2) and the step squared times a third derivative."""

_AUTOGRAD = "test_autograd_registration"
_TESTS = frozenset({"test_schema", _AUTOGRAD, "test_faketensor", "test_aot_dispatch_dynamic"})
"""All that opcheck has."""
_KNOWN = frozenset({"cpu", "cuda", "xpu"})
"""Devices of which opcheck can say whether autograd is registered; of others it raises
NotImplementedError (torch 2.14, testing/_internal/optests/autograd_registration.py)."""

Call = tuple[OpOverload, tuple[Any, ...], bool]
"""An operator, its arguments, and whether it was called forward."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's has no types
    """Notes calls of operators that are not torch's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.calls: list[Call] = []
        self.forward = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("aten", "prim", "prims"):
            kept = tuple(copied(one) if isinstance(one, torch.Tensor) else one for one in args)
            self.calls.append((func, kept, self.forward))
        return func(*args, **(kwargs or {}))


def recorded(subject: Subject, case: Case, dtype: torch.dtype) -> list[Call]:
    """The operators that one forward and backward calls, with copies of their arguments."""
    inputs, grad = made(subject, case, dtype)
    recorder = _Recorder()
    leaves = [copied(one).requires_grad_() for one in inputs]
    with recorder:
        output = subject.function(*leaves)
        recorder.forward = False
        torch.autograd.grad(output, leaves, copied(grad))
    return recorder.calls


_LAYOUTS = (Case("contiguous", "small"), Case("not contiguous", "small", strided=True))


def operator_names(
    subject: Subject, dtype: torch.dtype, cases: Sequence[Case] = _LAYOUTS
) -> tuple[str, ...]:
    """Names of the checks of the operators."""
    return tuple(
        f"{subject.name} {said(dtype)}, {case.name}: {what}"
        for case in cases
        for what in ("operators called", "opcheck")
    )


def operator_checks(subject: Subject, dtype: torch.dtype) -> tuple[Check, ...]:
    """The operator is there, and opcheck holds, contiguous or not."""
    checks: list[Check] = []
    for case in _LAYOUTS:
        calls = recorded(subject, case, dtype)
        called, sound = operator_names(subject, dtype, [case])
        checks.append(
            Check(
                name=called,
                measured=len(calls),
                comparator=">=",
                limit=1,
                source="derived",
            )
        )
        faults = [fault for call in calls for fault in _faults(call)]
        checks.append(none(sound, faults))
    return tuple(checks)


def _faults(call: Call) -> list[str]:
    """What opcheck says of an operator, test by test; it fails in any way that it likes."""
    operator, arguments, forward = call
    given = tuple(one.requires_grad_() if forward and _floats(one) else one for one in arguments)
    devices = {one.device.type for one in given if isinstance(one, torch.Tensor)}
    asked = _TESTS if devices <= _KNOWN else _TESTS - {_AUTOGRAD}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.library.opcheck(
            operator, given, test_utils=sorted(asked), raise_exception=False
        )
    faults = [test for test, outcome in found.items() if outcome != "SUCCESS"]
    if asked != _TESTS and forward and not has_autograd(operator):
        faults.append(_AUTOGRAD)
    return [f"{operator}: {test}" for test in faults]


def has_autograd(operator: OpOverload) -> bool:
    """Whether an operator has a kernel for autograd, whatever the device."""
    name: str = operator.name()  # type: ignore[no-untyped-call] # torch's has no types
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd")


def _floats(one: object) -> bool:
    return isinstance(one, torch.Tensor) and one.is_floating_point()


def difference_name(subject: Subject) -> str:
    """Name of the check of the gradients against differences."""
    return f"{subject.name} float32: gradients that no difference gives"


def difference_checks(subject: Subject) -> tuple[Check, ...]:
    """Gradients against differences of the operator's own values, in float32."""
    inputs, _ = made(subject, Case("differences", "small"), torch.float32)
    leaves = tuple(one.requires_grad_() for one in inputs)
    with warnings.catch_warnings():
        # It warns of float32 as such.
        warnings.simplefilter("ignore")
        fault = fault_of(
            lambda: torch.autograd.gradcheck(
                subject.function, leaves, eps=STEP, atol=ABSOLUTE, rtol=RELATIVE
            )
        )
    return (none(difference_name(subject), fault),)


def compile_name(subject: Subject, dtype: torch.dtype) -> str:
    """Name of the check of the compiled operator."""
    return f"{subject.name} {said(dtype)}: compiled as one graph, differs"


def compile_checks(
    subject: Subject, dtype: torch.dtype, backend: str = "aot_eager"
) -> tuple[Check, ...]:
    """One graph without a break, whose outputs have the bits of the eager ones."""
    inputs, grad = made(subject, Case("compiled", "small"), dtype)
    eager = results(subject.function, inputs, grad)
    torch.compiler.reset()
    compiled = torch.compile(subject.function, backend=backend, fullgraph=True, dynamic=False)
    found: list[Any] = []
    fault = fault_of(lambda: found.extend(results(compiled, inputs, grad)))
    differ = fault or [
        name
        for name, one, other in zip(labels(inputs), found, eager, strict=True)
        if not same_bits(one, other)
    ]
    return (none(compile_name(subject, dtype), differ),)
