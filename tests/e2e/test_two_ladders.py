"""A second ladder makes its own reference, which is checked by itself, and trains on a text."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.e2e.conftest import pipeline
from trn_validate.store import Store
from trn_validate.verdict import Outcome

pytestmark = pytest.mark.e2e


def test_a_plan_with_two_ladders_passes_and_compares_inside_each(tmp_path: Path) -> None:
    done = pipeline(tmp_path, "run", "--config", "tests/e2e/two_ladders.yaml")
    assert done.status == 0, done.stderr + done.stdout
    (run,) = Store(tmp_path).runs()
    first, second = run.read("parallelism.large_fsdp"), run.read("parallelism.large_tp")
    assert first is not None
    assert second is not None
    assert first.outcome is second.outcome is Outcome.PASSED
    names = {check.name for check in first.checks}
    assert "resume: state at the start" in names
    assert "reference: fall of the loss" in names
    assert second.compared[0].reference.attempt == "parallelism.large_fsdp/1"
    text = hashlib.sha256(Path("LICENSE").read_bytes()).hexdigest()
    spec = run.folder / "parallelism.large_tp/1/large_tp/spec.json"
    assert text in spec.read_text(encoding="utf-8")
