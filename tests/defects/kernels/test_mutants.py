from __future__ import annotations

import pytest

from tests.defects.kernels.mutant import FAMILIES, Mutant
from tests.defects.kernels.mutants import MUTANTS
from tests.defects.kernels.operators import norm
from tests.kernels.ours import SUBJECTS
from trn_validate.kernels.opcheck.run import DTYPES, check_names


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_wrong_kernel_is_found_by_the_check_that_is_meant_for_it(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = mutant.build(monkeypatch)
    checks = FAMILIES[mutant.family](subject, mutant.dtype)
    named = [one for one in checks if one.name == f"{subject.name} {mutant.check}"]
    assert [one.passed for one in named] == [False]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_operator_that_the_mutants_are_made_of_passes(family: str) -> None:
    checks = [one for dtype in DTYPES for one in FAMILIES[family](norm(), dtype)]
    assert checks and [str(one) for one in checks if not one.passed] == []


def test_no_two_mutants_have_one_name_and_all_name_checks_that_are_made() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 25
    owed = {name for subject in SUBJECTS.values() for name in check_names(subject)}
    for mutant in MUTANTS:
        assert any(f"{name} {mutant.check}" in owed for name in SUBJECTS), mutant.name
