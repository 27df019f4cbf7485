"""One run of the whole CPU plan, shared by every test that reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trn_validate.processes import find_strays
from trn_validate.run import Run
from trn_validate.store import Store

CHECKOUT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Finished:
    """A pipeline process that has ended."""

    reports: Path
    status: int
    stdout: str
    stderr: str

    @property
    def run(self) -> Run:
        """Its run folder."""
        (run,) = Store(self.reports).runs()
        return run


def pipeline(reports: Path, *arguments: str) -> Finished:
    """Run the command line as a user does."""
    argv = [sys.executable, "pipeline.py", *arguments, "--reports", str(reports)]
    done = subprocess.run(
        argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=1800, check=False
    )
    return Finished(reports, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The whole CPU plan, run once for all tests."""
    reports = tmp_path_factory.mktemp("full") / "reports"
    finished = pipeline(reports, "run", "--config", "configs/cpu.yaml")
    assert finished.status == 0, finished.stderr + finished.stdout
    return finished


@pytest.fixture
def copied_run(full_run: Finished, tmp_path: Path) -> Path:
    """Reports folder with a copy of the finished run; large files are linked."""
    target = tmp_path / "reports"

    def copy(source: str, destination: str) -> None:
        # A test may spoil a text; the checkpoints are only read.
        if source.endswith((".distcp", ".safetensors")):
            os.link(source, destination)
        else:
            shutil.copy2(source, destination)

    shutil.copytree(full_run.reports, target, copy_function=copy)
    return target


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each test no rank of it is alive."""
    yield
    assert find_strays() == []
