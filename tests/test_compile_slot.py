"""Compilers wait for a slot; real processes, since a lock is between processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from trn_validate import compile_slot

SCRIPT = Path(compile_slot.__file__)
COMPILER = """#!/bin/sh
echo "start $1" >> "{log}"
sleep 0.4
echo "end $1" >> "{log}"
exit 7
"""


def compiler(folder: Path) -> Path:
    file = folder / "neuronx-cc"
    file.write_text(COMPILER.format(log=folder / "log"))
    file.chmod(0o755)
    return file


def start(folder: Path, slots: int, name: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", "-S", str(SCRIPT), str(folder), str(slots)]
    return subprocess.Popen([*argv, str(folder / "neuronx-cc"), name])


def most_at_once(folder: Path) -> int:
    now = most = 0
    for line in (folder / "log").read_text().splitlines():
        now += 1 if line.startswith("start") else -1
        most = max(most, now)
    return most


def test_no_more_compilers_run_than_there_are_slots_and_their_status_comes_through(
    tmp_path: Path,
) -> None:
    compiler(tmp_path)
    running = [start(tmp_path, 2, str(number)) for number in range(5)]
    assert [child.wait(30) for child in running] == [7] * 5
    assert most_at_once(tmp_path) == 2


def test_a_compiler_that_is_killed_gives_its_slot_back(tmp_path: Path) -> None:
    compiler(tmp_path)
    first = start(tmp_path, 1, "first")
    until = time.monotonic() + 20
    while not (tmp_path / "log").exists() and time.monotonic() < until:
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert start(tmp_path, 1, "second").wait(30) == 7
    assert "start second" in (tmp_path / "log").read_text()


def test_a_slot_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    taken = compile_slot.take(tmp_path, 1)
    other = os.open(tmp_path / "slot-0", os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = False
    except OSError:
        held = True
    os.close(taken)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert held
