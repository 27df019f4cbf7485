"""Faults of a cluster, each on a real Slurm: right outcome, node named, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.slurm_cluster import NODES
from tests.slurm.conftest import CHECKOUT, CONFIG, Desk, launched_on, ranks_on, until
from trn_validate.check import Check
from trn_validate.processes import everyone, process, variables
from trn_validate.store import Store
from trn_validate.verdict import Outcome, Verdict

FIRST, SECOND = NODES
STAGE, RUNG = "environment.nodes", "parallelism.fsdp"


def failed(verdict: Verdict, name: str) -> Check:
    assert verdict.outcome is Outcome.FAILED
    return next(check for check in verdict.failed_checks if check.name == name)


def test_nodes_in_order_pass(desk: Desk) -> None:
    desk.walk(STAGE)
    verdict = desk.verdict(STAGE)
    assert verdict.outcome is Outcome.PASSED, verdict.failed_checks or verdict.problem


@pytest.mark.usefixtures("baseline")
def test_a_killed_rank_is_named_with_its_node(desk: Desk) -> None:
    walking = desk.begin(RUNG)
    until(lambda: bool(ranks_on(SECOND)), "a rank on the second node")
    time.sleep(3)
    victims = ranks_on(SECOND)
    os.kill(victims[0], signal.SIGKILL)
    walking.wait(300)
    verdict = desk.verdict(RUNG)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert verdict.problem.cause == "killed"
    assert verdict.problem.rank is not None
    assert f"on {desk.name_of(SECOND)}: rank {verdict.problem.rank}" in verdict.problem.what


def stepping(desk: Desk) -> bool:
    """Whether both ranks of the launch that runs have taken a step."""
    (run,) = Store(desk.reports).runs()
    newest = run.attempts(RUNG)[-1].private
    ranks = [path.read_text() for path in newest.glob("*/records/rank-*.jsonl")]
    return len(ranks) == 2 and all('"step":1,' in text for text in ranks)


@pytest.mark.usefixtures("baseline")
def test_a_rank_that_stops_is_named_with_its_node(desk: Desk) -> None:
    # Far more steps than it comes to, so that it is stopped in the midst of them.
    more = "paths.native.ladders.debug.workload.steps=5000"
    walking = desk.begin(RUNG, more, "timeouts.silence=40")
    until(lambda: stepping(desk), "a step of both ranks")
    (victim,) = (one for one in ranks_on(SECOND) if variables(one).get("RANK") is not None)
    rank = int(variables(victim)["RANK"])
    os.kill(victim, signal.SIGSTOP)
    walking.wait(300)
    verdict = desk.verdict(RUNG)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert (verdict.problem.cause, verdict.problem.rank) == ("hang", rank), verdict.problem
    assert f"on {desk.name_of(SECOND)}: " in verdict.problem.what


@pytest.mark.usefixtures("baseline")
def test_a_killed_pipeline_leaves_no_process_and_loses_no_record(desk: Desk) -> None:
    walking = desk.begin(RUNG)
    until(lambda: bool(ranks_on(SECOND)), "a rank on the second node")
    (shell,) = (one.pid for one in everyone() if one.parent == walking.pid)
    (pipeline,) = (one.pid for one in everyone() if one.parent == shell)
    os.kill(pipeline, signal.SIGKILL)
    assert walking.wait(60) == 128 + signal.SIGKILL
    until(lambda: not any(launched_on(name) for name in NODES), "the end of every rank", 60)
    (run,) = Store(desk.reports).runs()
    with run.lock():
        assert run.publish_leftovers() == (run.attempts(RUNG)[-1].relative,)
    desk.cluster.wait_idle()
    desk.walk(RUNG)
    assert desk.verdict(RUNG).outcome is Outcome.PASSED


@pytest.mark.usefixtures("baseline")
def test_a_node_that_is_drained_in_mid_stage_finishes_the_stage(desk: Desk) -> None:
    walking = desk.begin(RUNG)
    until(lambda: bool(ranks_on(SECOND)), "a rank on the second node")
    node = f"NodeName={SECOND}"
    desk.cluster.ask("scontrol", "update", node, "State=DRAIN", "Reason=test")
    try:
        assert walking.wait(300) == 0
        assert desk.verdict(RUNG).outcome is Outcome.PASSED
    finally:
        desk.cluster.ask("scontrol", "update", node, "State=RESUME")


@pytest.mark.usefixtures("baseline")
def test_a_killed_slurmd_fails_the_next_launch_and_names_the_node(desk: Desk) -> None:
    walking = desk.begin(RUNG, STAGE)
    until(lambda: bool(ranks_on(SECOND)), "a rank on the second node")
    desk.cluster.kill_node(SECOND)
    try:
        walking.wait(400)
        # What it had started goes on without it.
        assert desk.verdict(RUNG).outcome is Outcome.PASSED
        verdict = desk.verdict(STAGE)
        assert desk.name_of(SECOND) in failed(verdict, "nodes that answered").detail
        assert verdict.problem is not None
        assert verdict.problem.cause == "node"
    finally:
        desk.cluster.start_node(SECOND)


def test_another_package_version_is_named_with_both_values(desk: Desk, tmp_path: Path) -> None:
    metadata = tmp_path / "safetensors-99.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: safetensors\nVersion: 99.0\n")
    (desk.cluster.env / SECOND).write_text(f"PYTHONPATH={tmp_path}:{CHECKOUT}\n")
    desk.walk(STAGE)
    check = failed(desk.verdict(STAGE), "nodes that differ in packages")
    assert f"safetensors 99.0 on {desk.name_of(SECOND)}" in check.detail
    assert check.detail.endswith(f"on {desk.name_of(FIRST)}")


AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(id, now);
  if (id == CLOCK_REALTIME) now->tv_sec += 90;
  return status;
}
"""


def test_another_clock_is_named(desk: Desk, tmp_path: Path) -> None:
    source, library = tmp_path / "ahead.c", tmp_path / "ahead.so"
    source.write_text(AHEAD)
    argv = ["g++", "-x", "c", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(argv, check=True)
    (desk.cluster.env / SECOND).write_text(f"LD_PRELOAD={library}\n")
    desk.walk(STAGE)
    check = failed(desk.verdict(STAGE), "clock of any node")
    assert isinstance(check.measured, float)
    assert 85 < check.measured < 95
    assert any(desk.name_of(node) in check.detail for node in NODES)


def test_another_folder_is_named(desk: Desk) -> None:
    if os.getuid() != 0:
        pytest.skip("another view of the file system takes root")
    desk.walk(STAGE)
    hide = f'mount -t tmpfs none {desk.reports} && exec "$0" "$@"'
    desk.cluster.kill_node(SECOND)
    desk.cluster.start_node(SECOND, inside=("unshare", "--mount", "sh", "-c", hide))
    try:
        desk.cluster.wait_idle()
        desk.walk(STAGE)
        verdict = desk.verdict(STAGE)
        assert desk.name_of(SECOND) in failed(verdict, "nodes that see the run folder").detail
        assert verdict.problem is not None
        assert "does not see" in verdict.problem.what
    finally:
        desk.cluster.kill_node(SECOND)
        desk.cluster.start_node(SECOND)


def test_a_taken_rendezvous_port_is_said(desk: Desk) -> None:
    with socket.create_server(("", 0)) as server:
        desk.walk(STAGE, f"rendezvous_port={server.getsockname()[1]}")
    verdict = desk.verdict(STAGE)
    assert failed(verdict, "nodes at the rendezvous").measured == 0
    assert verdict.problem is not None
    assert verdict.problem.cause == "port"


@contextlib.contextmanager
def slowed(node: str) -> Iterator[None]:
    """Let the ranks of a node run a sixth of the time."""
    over = threading.Event()

    def pause() -> None:
        pids: list[int] = []
        while not over.is_set():
            # Looking takes longer than a pause, and they would run meanwhile.
            pids = [pid for pid in pids if process(pid)] or ranks_on(node)
            for signum, seconds in ((signal.SIGSTOP, 0.1), (signal.SIGCONT, 0.02)):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signum)
                time.sleep(seconds)

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_slow_node_is_named_with_its_factor(desk: Desk) -> None:
    with slowed(SECOND):
        desk.walk(STAGE)
    check = failed(desk.verdict(STAGE), "slowest node")
    assert isinstance(check.measured, float)
    assert check.measured > 3
    assert check.detail.startswith(desk.name_of(SECOND))


def test_a_preempted_job_leaves_an_error_and_goes_on_when_it_is_put_back(
    desk: Desk, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    script = str(CHECKOUT / "slurm" / "validate.sbatch")
    argv = ["sbatch", "--parsable", "--nodes", "2", f"--output={tmp_path}/%j.log", script]
    job = _submit(desk, [*argv, "--config", str(CONFIG), "--reports", str(reports)])

    def stands(stage: str) -> Verdict | None:
        runs = Store(reports).runs()
        return runs[0].read(stage) if runs else None

    try:
        until(lambda: stands("environment.imports") is not None, "the first stages")
        until(lambda: bool(ranks_on(SECOND)), "a launch over both nodes")
        before = stands("environment.imports")
        desk.cluster.ask("scontrol", "requeue", job)
        until(lambda: stands(STAGE) is not None, "a verdict of what was interrupted")
        interrupted = stands(STAGE)
        assert interrupted is not None
        assert interrupted.outcome is Outcome.ERROR
        assert interrupted.host.job == f"slurm {job}"
        # Slurm puts a job back after two minutes (BEGIN_TIME), unless it is told to begin now.
        until(lambda: _restarted(desk, job), "the job to come back")
        until(lambda: (v := stands(STAGE)) is not None and v.attempt == 2, "the next attempt", 300)
        again = stands(STAGE)
        assert again is not None
        assert again.outcome is Outcome.PASSED, again.problem
        assert again.host.job == f"slurm {job}, restart 1"
        assert stands("environment.imports") == before
    finally:
        desk.cluster.ask("scancel", job)


def _submit(desk: Desk, argv: list[str]) -> str:
    variables = {"PYTHON": sys.executable, "PYTHONPATH": str(CHECKOUT)}
    environment = os.environ | desk.cluster.variables | variables
    done = subprocess.run(argv, env=environment, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _restarted(desk: Desk, job: str) -> bool:
    told = desk.cluster.ask("scontrol", "show", "job", job)
    if "JobState=PENDING" in told:
        with contextlib.suppress(RuntimeError):
            desk.cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    return "Restarts=1" in told and "JobState=RUNNING" in told


def test_two_pipelines_side_by_side_do_not_disturb_each_other(desk: Desk, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    walking = [desk.begin(STAGE, reports=folder) for folder in folders]
    assert [one.wait(300) for one in walking] == [0, 0]
    verdicts = [desk.verdict(STAGE, folder) for folder in folders]
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASSED] * 2
    assert verdicts[0].host.job != verdicts[1].host.job
