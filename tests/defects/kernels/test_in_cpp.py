from __future__ import annotations

import pytest

from tests.defects.kernels.in_cpp import IN_CPP, missing, swiglu
from tests.defects.kernels.mutant import FAMILIES, Mutant
from trn_validate.kernels.opcheck.run import DTYPES

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MADE = ("running", "accuracy", "operators", "compile", "differences")
"""What does not count launches: compiled code is no NKI kernel, and launches none."""


@pytest.mark.parametrize("family", MADE)
def test_the_compiled_kernel_without_a_fault_passes(family: str) -> None:
    checks = [one for dtype in DTYPES for one in FAMILIES[family](swiglu(0), dtype)]
    assert checks and [str(one) for one in checks if not one.passed] == []


def test_of_its_conduct_only_the_launches_say_no() -> None:
    checks = [one for dtype in DTYPES for one in FAMILIES["conduct"](swiglu(0), dtype)]
    wrong = [one.name for one in checks if not one.passed]
    assert len(wrong) == 4 and all("launches of swiglu" in name for name in wrong)


@pytest.mark.parametrize("mutant", IN_CPP, ids=lambda one: one.name)
def test_a_fault_of_compiled_code_is_found_by_the_check_that_is_meant_for_it(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = mutant.build(monkeypatch)
    checks = FAMILIES[mutant.family](subject, mutant.dtype)
    named = [one for one in checks if one.name == f"{subject.name} {mutant.check}"]
    assert [one.passed for one in named] == [False]
