"""All checks of a kernel's operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trn_validate.check import Check
from trn_validate.kernels.opcheck.accuracy import accuracy_checks, accuracy_names
from trn_validate.kernels.opcheck.conduct import (
    conduct_checks,
    conduct_names,
    launch_names,
    running_checks,
    running_name,
)
from trn_validate.kernels.opcheck.registration import (
    compile_checks,
    compile_name,
    difference_checks,
    difference_name,
    operator_checks,
    operator_names,
)
from trn_validate.kernels.opcheck.subject import Subject, said

DTYPES = (torch.float32, torch.bfloat16)


def check_names(subject: Subject, dtypes: Sequence[torch.dtype] = DTYPES) -> tuple[str, ...]:
    """Names of the checks that :func:`check_kernel` owes."""
    names: list[str] = []
    for dtype in dtypes:
        where = f"{subject.name} {said(dtype)}"
        names += (running_name(subject, dtype), *accuracy_names(subject, dtype))
        names += (*launch_names(subject, where), *conduct_names(where))
        names += (*operator_names(subject, dtype), compile_name(subject, dtype))
        if dtype == torch.float32:
            names.append(difference_name(subject))
    return tuple(names)


def check_kernel(
    subject: Subject, dtypes: Sequence[torch.dtype] = DTYPES, backend: str = "aot_eager"
) -> tuple[Check, ...]:
    """Every check of ``subject``, in every dtype; ``backend`` is Dynamo's, of one graph.

    An operator that torch does not let run leaves the rest of its dtype unmeasured.

    Raises:
        KernelError: a kernel cannot be launched, so there is nothing to measure.
    """
    checks: list[Check] = []
    for dtype in dtypes:
        (running,) = running_checks(subject, dtype)
        checks.append(running)
        if not running.passed:
            continue
        checks += accuracy_checks(subject, dtype)
        checks += conduct_checks(subject, dtype)
        checks += operator_checks(subject, dtype)
        checks += compile_checks(subject, dtype, backend)
        if dtype == torch.float32:
            checks += difference_checks(subject)
    return tuple(checks)
