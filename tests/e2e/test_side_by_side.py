"""Pipelines at once on one machine: none is in another's way, and a run has one writer."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests.builders import write_plan
from tests.e2e.conftest import CHECKOUT, Finished, pipeline
from trn_validate.verdict import Outcome, Verdict

pytestmark = pytest.mark.e2e

DEVICE, IMPORTS, EAGER = "environment.device", "environment.imports", "baseline.eager"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of one process and four steps: the first of two ladders, with no mask to compile."""
    raw = yaml.safe_load((CHECKOUT / "tests/e2e/two_ladders.yaml").read_text(encoding="utf-8"))
    ladders = raw["paths"]["native"]["ladders"]
    del ladders[1:]
    ladders[0]["workload"]["attention"] = "causal"
    return write_plan(tmp_path, raw)


def only(reports: Path, stage: str, plan: Path) -> Finished:
    return pipeline(reports, "run", "--only", stage, "--config", str(plan))


def wait_for_ranks(reports: Path, running: Future[Finished]) -> None:
    """Wait until a rank of baseline.eager is at work."""
    while not list(reports.glob(f".private/cpu.*/{EAGER}/1/*/records/rank-*.jsonl")):
        assert not running.done(), running.result().stderr + running.result().stdout
        time.sleep(0.2)


def passed(finished: Finished, stage: str) -> Verdict:
    """The verdict of a command that passed at its first try, and found nothing to tidy up."""
    assert finished.status == 0, finished.stderr + finished.stdout
    assert "a killed run" not in finished.stderr
    verdict = finished.run.read(stage)
    assert verdict is not None
    assert (verdict.outcome, verdict.attempt) == (Outcome.PASSED, 1)
    return verdict


def span(verdict: Verdict) -> tuple[datetime, datetime]:
    """When a stage began and ended."""
    start = datetime.fromisoformat(verdict.started_at)
    return start, start + timedelta(seconds=verdict.seconds)


def test_pipelines_pass_side_by_side_and_a_second_one_in_a_run_is_refused(
    tmp_path: Path, plan: Path
) -> None:
    one, other, third = tmp_path / "one", tmp_path / "other", tmp_path / "third"
    for stage in (DEVICE, IMPORTS):
        passed(only(one, stage, plan), stage)
    shutil.copytree(one, other)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(only, reports, EAGER, plan) for reports in (one, other)]
        wait_for_ranks(one, running[0])
        wait_for_ranks(other, running[1])
        refused = pipeline(one, "run", "--config", str(plan))
        # It looks for ranks that nobody supervises, and ends them before its first stage.
        device = passed(only(third, DEVICE, plan), DEVICE)
    verdicts = [passed(each.result(), EAGER) for each in running]

    (strays,) = (check for check in device.checks if check.name == "stray ranks")
    assert strays.measured == 0
    (began, ended), (other_began, other_ended) = map(span, verdicts)
    assert max(began, other_began) < span(device)[0] < min(ended, other_ended)

    assert (refused.status, refused.stdout) == (2, "")
    assert "Traceback" not in refused.stderr
    messages = [line for line in refused.stderr.splitlines() if line.startswith("error: ")]
    assert messages == [
        f"error: {running[0].result().run.name}: another process is at work in this run. "
        "Wait until it has ended, or start a run of its own with --new."
    ]
