from __future__ import annotations

import pytest
import torch

from tests.kernels.ours import SUBJECTS
from trn_validate.kernels.opcheck.accuracy import accuracy_checks
from trn_validate.kernels.opcheck.run import DTYPES, check_kernel, check_names
from trn_validate.kernels.opcheck.subject import CASES


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_good_kernel_passes_every_check_that_is_owed(name: str) -> None:
    checks = check_kernel(SUBJECTS[name])
    assert tuple(one.name for one in checks) == check_names(SUBJECTS[name])
    assert len(set(check_names(SUBJECTS[name]))) == len(checks) > 60
    assert [str(one) for one in checks if not one.passed] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SUBJECTS)
def test_no_good_kernel_is_flagged_in_20_seeds(name: str, dtype: torch.dtype) -> None:
    few = [case for case in CASES if case.place != "many rows"]
    found = [one for seed in range(20) for one in accuracy_checks(SUBJECTS[name], dtype, few, seed)]
    assert len(found) == 20 * 2 * len(few)
    assert [str(one) for one in found if not one.passed] == []
