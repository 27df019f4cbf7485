"""What a wrong kernel is, and which check has to find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from trn_validate.check import Check
from trn_validate.kernels.opcheck.accuracy import accuracy_checks
from trn_validate.kernels.opcheck.conduct import conduct_checks, running_checks
from trn_validate.kernels.opcheck.registration import (
    compile_checks,
    difference_checks,
    operator_checks,
)
from trn_validate.kernels.opcheck.subject import Subject

Family = Callable[[Subject, torch.dtype], tuple[Check, ...]]
FAMILIES: dict[str, Family] = {
    "running": running_checks,
    "accuracy": accuracy_checks,
    "conduct": conduct_checks,
    "operators": operator_checks,
    "compile": compile_checks,
    "differences": lambda subject, _: difference_checks(subject),
}
"""What the checks of one call are; a mutant is tested with the family that has to find it."""


@dataclass(frozen=True)
class Mutant:
    """One wrong kernel."""

    name: str
    stands_for: str
    build: Callable[[pytest.MonkeyPatch], Subject]
    """Makes the operator; what it patches, the caller undoes."""
    family: str
    check: str
    """The check that has to say no, without the kernel's name: ``float32: changed inputs``."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the check is about."""
        return torch.bfloat16 if self.check.startswith("bfloat16") else torch.float32
