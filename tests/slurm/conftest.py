"""One Slurm of two nodes for all tests here, and the run that the faults are put into."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scripts.slurm_cluster import NODES, Cluster, why_not
from trn_validate.processes import LAUNCH, everyone, variables
from trn_validate.store import Store
from trn_validate.verdict import Verdict

CHECKOUT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("two_rungs.yaml")
ASKED = "TRN_VALIDATE_TEST_SLURM"
"""Set by make test-slurm, since these tests take minutes and need daemons of their own."""
NODE, CONF = "SLURMD_NODENAME", "SLURM_CONF"


@dataclass
class Desk:
    """Where a test works: a cluster, and a reports folder."""

    cluster: Cluster
    reports: Path
    begun: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self, *words: str, reports: Path | None = None) -> subprocess.Popen[bytes]:
        """Start to walk some stages in an allocation of both nodes."""
        walk = [sys.executable, "-m", "tests.slurm.walk", str(reports or self.reports)]
        # As make does: salloc gives 0 for a command that was killed.
        asked = ["salloc", "--quiet", "--nodes", "2", "sh", "-c", '"$@"; exit $?', "sh"]
        argv = [*asked, *walk, str(CONFIG), *words]
        one = self.run(argv)
        self.begun.append(one)
        return one

    def run(self, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a command that knows the cluster."""
        environment = os.environ | self.cluster.variables | {"PYTHONPATH": str(CHECKOUT)}
        return subprocess.Popen(argv, cwd=CHECKOUT, env=environment)

    def walk(self, *words: str) -> None:
        """Walk some stages to their end."""
        assert self.begin(*words).wait(600) == 0

    def verdict(self, stage: str, reports: Path | None = None) -> Verdict:
        """The verdict of a stage that stands."""
        (run,) = Store(reports or self.reports).runs()
        verdict = run.read(stage)
        assert verdict is not None
        return verdict

    def name_of(self, node: str) -> str:
        """What stands for a node in the verdicts of this run."""
        (run,) = Store(self.reports).runs()
        return run.redactor().text(node)


def launched_on(node: str, holding: str = LAUNCH) -> list[int]:
    """Processes of any launch on a node of this cluster, all of them on this machine."""
    own = {NODE: node, CONF: os.environ[CONF]}
    told = {one.pid: variables(one.pid) for one in everyone()}
    return [pid for pid, env in told.items() if own.items() <= env.items() and holding in env]


def ranks_on(node: str) -> list[int]:
    """Processes of ranks on a node."""
    return launched_on(node, "LOCAL_RANK")


def until(holds: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
    """Wait for something that has to come."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if not os.environ.get(ASKED):
        pytest.skip("make test-slurm runs these")
    if reason := why_not():
        pytest.skip(reason)
    # Not below pytest's own folder, whose path may be too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    one = Cluster(folder)
    with pytest.MonkeyPatch.context() as patch:
        # Another cluster of tests on this machine has nodes of the same names.
        patch.setenv(CONF, one.variables[CONF])
        try:
            one.start()
            yield one
        finally:
            one.stop()
            assert one.processes() == []
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def reports(cluster: Cluster) -> Iterator[Path]:
    """Reports of one run with a baseline, which most faults go on from."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-reports-"))
    yield folder / "reports"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def desk(cluster: Cluster, reports: Path) -> Iterator[Desk]:
    """A cluster in order; afterwards nothing is left of any launch, on either node."""
    one = Desk(cluster, reports)
    yield one
    for process in one.begun:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    for name in NODES:
        (cluster.env / name).unlink(missing_ok=True)
    cluster.wait_idle()
    assert [pid for name in NODES for pid in launched_on(name)] == []


@pytest.fixture(scope="session")
def baseline(cluster: Cluster, reports: Path) -> None:
    """Seed, reference and control of the ladder, once."""
    Desk(cluster, reports).walk("baseline.eager")
