"""One fault of each class, in real training: each is stopped by the check meant for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.defects.inject import run_stage
from tests.e2e.conftest import CHECKOUT, pipeline
from trn_validate.processes import find_strays
from trn_validate.store import Store
from trn_validate.verdict import Outcome

pytestmark = pytest.mark.e2e

FSDP = "parallelism.fsdp"


def test_a_loss_that_is_not_a_number_fails_the_finite_check(copied_run: Path) -> None:
    status, verdict, _ = run_stage(copied_run, FSDP, "not_finite", ["fsdp"])
    assert status == 1
    assert verdict.outcome is Outcome.FAILED
    (check,) = verdict.failed_checks
    assert check.name == "fsdp: numbers that are not finite"
    assert "loss" in check.detail
    assert "step 3" in check.detail
    assert verdict.problem is not None
    assert verdict.problem.step == 3


def test_a_learning_rate_of_zero_fails_the_fall_of_the_loss(copied_run: Path) -> None:
    status, verdict, _ = run_stage(
        copied_run,
        "baseline.eager",
        "learning_rate_zero",
        ["reference", "rerun", "control", "accumulation"],
    )
    assert status == 1
    # Where nothing changes, no distance is small beside the change.
    assert [c.name for c in verdict.failed_checks] == [
        "reference: fall of the loss",
        "control: noise of the parameters after the last step",
    ]
    assert verdict.hooks == ("tests.defects.training:learning_rate_zero",)


def test_a_global_batch_that_follows_the_layout_fails_the_tokens(copied_run: Path) -> None:
    status, verdict, _ = run_stage(copied_run, FSDP, "larger_batch", ["fsdp"])
    assert status == 1
    tokens = next(c for c in verdict.failed_checks if c.name == "fsdp: tokens per step")
    assert (tokens.measured, tokens.limit) == (2048, 1024)
    assert verdict.failed_checks[0] == tokens


def test_a_lost_optimizer_state_is_seen_before_the_first_resumed_step(copied_run: Path) -> None:
    status, verdict, _ = run_stage(copied_run, "baseline.checkpoint", "optimizer_lost", ["resume"])
    assert status == 1
    first = verdict.failed_checks[0]
    assert first.name == "resume: state at the start"
    assert first.detail == "optimizer of rank 0"
    assert "resume: loss against the reference" in {c.name for c in verdict.failed_checks}


def test_a_rank_that_hangs_is_an_error_with_its_stack(copied_run: Path) -> None:
    # A time limit makes no verdict stale, so the baseline still stands.
    limits = ["timeouts.silence=40"]
    status, verdict, launcher = run_stage(copied_run, FSDP, "hanging", ["fsdp"], limits)
    assert status == 4
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert verdict.problem.cause == "hang"
    assert verdict.problem.rank == 1
    assert "train_step" in launcher.results[-1].excerpt


def test_a_killed_rank_is_an_error_that_names_it(copied_run: Path) -> None:
    status, verdict, _ = run_stage(copied_run, FSDP, "killed", ["fsdp"])
    assert status == 4
    assert verdict.problem is not None
    assert (verdict.problem.cause, verdict.problem.rank) == ("killed", 1)
    assert verdict.problem.step == 2


def test_a_killed_torchrun_leaves_no_rank_behind(copied_run: Path) -> None:
    status, verdict, _ = run_stage(copied_run, FSDP, "orphaned", ["fsdp"])
    assert status == 4
    assert verdict.problem is not None
    assert verdict.problem.cause == "killed"
    assert find_strays() == []


def start(reports: Path) -> subprocess.Popen[str]:
    """Start the fsdp stage as a user does, and wait until its ranks have begun to train."""
    argv = [sys.executable, "pipeline.py", "run", "--only", FSDP, "--config", "configs/cpu.yaml"]
    process = subprocess.Popen(
        [*argv, "--reports", str(reports)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        records = list(reports.glob(f".private/cpu.*/{FSDP}/2/fsdp/records/rank-*.jsonl"))
        if any('"kind":"step"' in path.read_text(encoding="utf-8") for path in records):
            return process
        time.sleep(0.2)
    raise AssertionError(f"the ranks never began to train: {process.communicate()}")


def test_a_killed_pipeline_leaves_nothing_and_the_stage_runs_again(copied_run: Path) -> None:
    run = Store(copied_run).runs()[0]
    before = run.verdict_path(FSDP).read_bytes()
    process = start(copied_run)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _ranks(copied_run):
        time.sleep(0.2)
    assert _ranks(copied_run) == []
    assert run.verdict_path(FSDP).read_bytes() == before
    again = pipeline(copied_run, "run", "--only", FSDP, "--config", "configs/cpu.yaml")
    assert again.status == 0, again.stdout + again.stderr
    verdict = run.read(FSDP)
    assert verdict is not None
    assert verdict.attempt == 3
    # What the killed attempt had recorded is kept, too.
    assert list(run.folder.glob(f"{FSDP}/2/fsdp/records/rank-0.jsonl"))
    assert (run.folder / FSDP / "1" / "verdict.json").read_bytes() == before


def _ranks(reports: Path) -> list[int]:
    """Processes that work for a launch below ``reports``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(reports).encode() in command and b"trn_validate.workload" in command:
            found.append(int(entry.name))
    return found


def test_an_interrupt_writes_an_error_verdict_and_exits_130(copied_run: Path) -> None:
    process = start(copied_run)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted by SIGINT" in stderr
    assert "Traceback" not in stderr
    verdict = Store(copied_run).runs()[0].read(FSDP)
    assert verdict is not None
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert verdict.problem.cause == "interrupted"
    assert _ranks(copied_run) == []
    status = pipeline(copied_run, "status", "--json")
    assert status.status == 4
    stages = {row["stage"]: row for row in json.loads(status.stdout)["stages"]}
    assert stages["parallelism.tp"]["state"] == "stale"


def test_a_full_disk_is_refused_before_a_stage_starts(tmp_path: Path) -> None:
    refused = pipeline(tmp_path, "run", "--set", "profile.disk_gib=1000000000")
    assert refused.status == 2
    assert "are needed" in refused.stderr
    assert "Free some space" in refused.stderr
    assert not list(tmp_path.glob("cpu.*"))
