"""Values and gradients against float64, by the error that torch itself makes in that dtype.

A fixed tolerance passes a kernel that accumulates in bfloat16; the ratio of its error to that of
torch does not. Sources of the limits: 2 for the largest error, github.com/Dao-AILab/flash-attention
tests/test_flash_attn.py; 1.2 for the Frobenius norm, github.com/aws-neuron/
neuron-agentic-development, skill neuron-framework-equivalence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from trn_validate.check import Check
from trn_validate.kernels import launches
from trn_validate.kernels.opcheck.subject import (
    CASES,
    Case,
    Subject,
    Tensors,
    exact_results,
    labels,
    made,
    results,
    said,
)

LARGEST, FROBENIUS = 2.0, 1.2
"""Largest error, and Frobenius norm of the error, in those of torch."""
NORMS = {"largest": LARGEST, "frobenius": FROBENIUS}
FLOOR = 4 * torch.finfo(torch.float32).eps
"""In float32 torch may be right to the bit, and a ratio to nothing says nothing: errors up to
this part of the largest value, or of the norm, pass, times the root of the terms of a sum: by so
much do orders of summation differ (N. Higham and T. Mary, A New Approach to Probabilistic Rounding
Error Analysis, 2019). In bfloat16 torch always rounds."""


@dataclass(frozen=True)
class Ratios:
    """Errors of one tensor in those of torch."""

    largest: float
    frobenius: float


def ratios(found: torch.Tensor, low: torch.Tensor, exact: torch.Tensor, depth: int = 1) -> Ratios:
    """Errors of ``found`` in those of ``low``, both against ``exact`` (float64, same shape).

    NaN where ``found`` has another shape or dtype than ``low``, or a value that is not finite.
    """
    if found.shape != low.shape or found.dtype != low.dtype:
        return Ratios(math.nan, math.nan)
    error, its = found.double() - exact, low.double() - exact
    floor = FLOOR * depth**0.5 if low.dtype == torch.float32 else 0.0
    sizes = [[float(one.norm(p)) for one in (error, its, exact)] for p in (math.inf, 2)]
    return Ratios(
        *(
            _ratio(mine, max(torchs, floor * size / limit))
            for (mine, torchs, size), limit in zip(sizes, (LARGEST, FROBENIUS), strict=True)
        )
    )


def _ratio(error: float, its: float) -> float:
    if error == 0.0:
        return 0.0
    return error / its if its > 0.0 else math.inf


def compared(subject: Subject, inputs: Tensors, grad: torch.Tensor) -> tuple[Ratios, ...]:
    """Ratios of the output and of every gradient; torch computes on the CPU."""
    found = results(subject.function, inputs, grad)
    low = results(subject.reference, tuple(one.cpu() for one in inputs), grad.cpu())
    exact = exact_results(subject, inputs, grad)
    return tuple(
        ratios(one.cpu(), torchs, gold, subject.depth)
        for one, torchs, gold in zip(found, low, exact, strict=True)
    )


def accuracy_names(
    subject: Subject, dtype: torch.dtype, cases: Sequence[Case] = CASES
) -> tuple[str, ...]:
    """Names of the checks of these cases."""
    return tuple(
        f"{subject.name} {said(dtype)}, {case.name}: {norm} error"
        for case in cases
        for norm in NORMS
    )


def accuracy_checks(
    subject: Subject, dtype: torch.dtype, cases: Sequence[Case] = CASES, seed: int = 0
) -> tuple[Check, ...]:
    """Two checks for each case: the worst of output and gradients, by either norm."""
    checks: list[Check] = []
    for case in cases:
        inputs, grad = made(subject, case, dtype, seed)
        with nullcontext() if case.cores is None else launches.on_cores(case.cores):
            found = compared(subject, inputs, grad)
        for name, norm in zip(accuracy_names(subject, dtype, [case]), NORMS, strict=True):
            worst, label = _worst([getattr(one, norm) for one in found], labels(inputs))
            checks.append(
                Check(
                    name=name,
                    measured=worst,
                    comparator="<=",
                    limit=NORMS[norm],
                    unit="errors of torch",
                    source="config",
                    detail=label,
                )
            )
    return tuple(checks)


def _worst(values: list[float], names: tuple[str, ...]) -> tuple[float, str]:
    """The largest value and whose it is; one that is not a number is worse than all."""
    return max(zip(values, names, strict=True), key=lambda pair: (math.isnan(pair[0]), pair[0]))
