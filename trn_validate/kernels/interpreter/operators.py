"""What ``op=`` may be, and the float32 arithmetic behind it.

Source: api/nki.api.shared.rst, "Supported Math Operators for NKI ISA" and "Supported Activation
Functions for NKI ISA".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from trn_validate.kernels.interpreter.rules import in_subset

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Operator:
    """An ``nl`` function, as the ``op`` of an instruction."""

    name: str
    binary: np.ufunc | None = None
    """Of two float32 operands."""
    activation: Callable[[Doubles], Doubles] | None = None
    """On float64, so that its float32 result is correctly rounded. The device has piecewise
    polynomials instead, whose error is not documented."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse: as a function, ``nl`` is outside the interpreted part."""
        in_subset(False, f"nl.{self.name}", "a call", ("as op= of an instruction",))
        raise AssertionError

    def __repr__(self) -> str:
        return f"nl.{self.name}"


def _copy(x: Doubles) -> Doubles:
    return x


def _silu(x: Doubles) -> Doubles:
    return x / (1.0 + np.exp(-x))


def _silu_dx(x: Doubles) -> Doubles:
    # Both sigmoids by themselves: 1 - sigmoid(x) would lose every digit for a large x.
    here, there = 1.0 / (1.0 + np.exp(-x)), 1.0 / (1.0 + np.exp(x))
    return here * (1.0 + x * there)


def _rsqrt(x: Doubles) -> Doubles:
    # Outside this range "the Scalar Engine will generate invalid output results".
    valid = (x >= 2.0**-87) & (x <= 2.0**97)
    return np.where(valid, 1.0 / np.sqrt(np.where(valid, x, 1.0)), np.nan)


add = Operator("add", binary=np.add)
subtract = Operator("subtract", binary=np.subtract)
multiply = Operator("multiply", binary=np.multiply)
copy = Operator("copy", activation=_copy)
rsqrt = Operator("rsqrt", activation=_rsqrt)
silu = Operator("silu", activation=_silu)
silu_dx = Operator("silu_dx", activation=_silu_dx)

BINARY = (add, subtract, multiply)
ACTIVATIONS = (copy, rsqrt, silu, silu_dx)


def binary(op: object, operand: str) -> np.ufunc:
    """The function of two operands that ``op`` names.

    Raises:
        KernelError: it names none that is interpreted.
    """
    found = op.binary if isinstance(op, Operator) else None
    in_subset(found is not None, operand, op, BINARY)
    assert found is not None
    return found


def activated(op: object, values: Floats, operand: str) -> Floats:
    """``op`` of float32 ``values`` (any shape), rounded once to float32.

    Raises:
        KernelError: ``op`` is no activation that is interpreted.
    """
    function = op.activation if isinstance(op, Operator) else None
    in_subset(function is not None, operand, op, ACTIVATIONS)
    assert function is not None
    return function(values.astype(np.float64)).astype(np.float32)
