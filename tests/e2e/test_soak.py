"""A soak of a plan with two ladders, the second of which makes its own reference, from a text."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.soak import verdicts_of
from tests.e2e.conftest import CHECKOUT
from trn_validate.paths import text_digest
from trn_validate.verdict import Outcome, Verdict

pytestmark = pytest.mark.e2e

FIRST, SECOND = "parallelism.large_fsdp", "parallelism.large_tp"


def soak(reports: Path) -> subprocess.CompletedProcess[str]:
    """One repeat, as ``make soak N=1`` does it."""
    argv = [sys.executable, "-m", "scripts.soak", "--repeats", "1", "--reports", str(reports)]
    argv += ["--config", "tests/e2e/two_ladders.yaml"]
    return subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=1800)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("soak") / "reports"
    done = soak(folder)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.endswith("1 of 1 runs passed\n")
    return folder


@pytest.fixture(scope="module")
def verdicts(reports: Path) -> dict[str, Verdict]:
    return {verdict.stage: verdict for verdict in verdicts_of(reports / "000")}


def test_every_stage_to_the_last_rung_of_both_ladders_passes(
    verdicts: dict[str, Verdict],
) -> None:
    assert {verdict.outcome for verdict in verdicts.values()} == {Outcome.PASSED}
    assert {"baseline.eager", FIRST, SECOND} <= set(verdicts)
    assert not {stage for stage in verdicts if stage.startswith("kernels.")}


def test_the_second_ladder_is_checked_by_itself_and_its_rungs_against_it(
    verdicts: dict[str, Verdict],
) -> None:
    names = {check.name for check in verdicts[FIRST].checks}
    assert {"resume: state at the start", "reference: fall of the loss"} <= names
    assert verdicts[SECOND].compared[0].reference.attempt == f"{FIRST}/1"


def test_the_text_that_it_trains_on_is_part_of_its_inputs(verdicts: dict[str, Verdict]) -> None:
    text = hashlib.sha256((CHECKOUT / "LICENSE").read_bytes()).hexdigest()
    assert verdicts[SECOND].inputs["external:LICENSE"] == text_digest(text)


def test_a_soak_that_is_done_prints_its_margins_and_runs_nothing_again(reports: Path) -> None:
    kept = {path: path.stat().st_mtime_ns for path in (reports / "000").rglob("*")}
    done = soak(reports)
    assert done.returncode == 0, done.stderr
    assert "| large_tp | gradient of step 1 | 1 |" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in (reports / "000").rglob("*")} == kept
