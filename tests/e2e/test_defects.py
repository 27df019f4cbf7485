"""Every seeded defect in real training: stopped by the check meant for it, and located."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.defects.catalogue import DEFECTS
from tests.defects.defect import Defect
from tests.e2e.conftest import CHECKOUT

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="session")
def found() -> dict[str, Any]:
    """What the command found, run once for all tests."""
    argv = [sys.executable, "-m", "scripts.defects", "--json"]
    done = subprocess.run(
        argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["sound"] == (done.returncode == 0)
    return answer


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_caught_by_the_check_meant_for_it_and_located(
    found: dict[str, Any], defect: Defect
) -> None:
    rows = {row["name"]: row for row in found["defects"]}
    row = rows[defect.name]
    assert row["meant"], "a defect without a check proves nothing"
    assert row["missed_by"] == [], f"{row['outcome']} ({row['problem']}): {row['failed']}"
    assert row["located"], row["failed"]


def test_a_layout_without_a_defect_gives_the_same_bits_first_and_last(
    found: dict[str, Any],
) -> None:
    compared = {row["launch"]: row["compared"] for row in found["repetitions"]}
    assert set(compared) >= {"reference", "rerun", "fsdp", "ddp", "pp", "tp", "cp"}
    assert min(compared.values()) > 0
    assert [row for row in found["repetitions"] if not row["equal"]] == []
