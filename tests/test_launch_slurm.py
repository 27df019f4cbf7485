"""The launcher against a stand-in for srun that starts its tasks on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from trn_validate import slurm_step
from trn_validate.allocation import Allocation
from trn_validate.errors import FolderError, Interrupted
from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.launch_slurm import SlurmLauncher
from trn_validate.node import IS_HOST, POSITION, RENDEZVOUS
from trn_validate.processes import members

NODES = ("na", "nb")
SRUN = f"""#!{sys.executable}
import os, subprocess, sys, threading
words = sys.argv[1:]
nodes = words[words.index("--nodelist") + 1].split(",")
command = words[words.index(sys.executable):]
down = os.environ.get("DOWN_NODE")
tasks = []
for name in nodes:
    if name == down:
        print(f"srun: error: Task launch failed on node {{name}}: no answer", file=sys.stderr)
        continue
    env = dict(os.environ, SLURMD_NODENAME=name)
    tasks.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=env))
def hand_on_the_end():
    sys.stdin.buffer.raw.read()
    for task in tasks:
        task.stdin.close()
threading.Thread(target=hand_on_the_end, daemon=True).start()
status = max((task.wait() for task in tasks), default=1) or bool(down)
sys.stdout.flush()
os._exit(status)
"""


@pytest.fixture(autouse=True)
def _srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(SRUN)
    (folder / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_step, "FOLLOW_SECONDS", 1.0)
    monkeypatch.setattr(slurm_step, "LINGER_SECONDS", 0.2)


def asked(folder: Path, code: str, *words: str, nodes: int = 2, **changes: object) -> LaunchRequest:
    values: dict[str, object] = {
        "name": "one",
        "argv": (sys.executable, "-c", code, *words),
        "folder": folder,
        "nodes": nodes,
        "wall_seconds": 30.0,
        "silence_seconds": 30.0,
        "grace_seconds": 1.0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    return LaunchRequest(**(values | changes))  # type: ignore[arg-type]


def carry_out(request: LaunchRequest, here: str | None = "na") -> LaunchResult:
    return SlurmLauncher(Allocation(job="1", nodes=NODES, here=here)).launch(request)


def output(folder: Path, position: int) -> str:
    return (folder / "nodes" / str(position) / "output.log").read_text().strip()


def test_each_node_carries_its_share_out_with_its_own_words(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['SLURMD_NODENAME'], *sys.argv[1:])"
    result = carry_out(asked(tmp_path / "l", code, POSITION, IS_HOST, RENDEZVOUS))
    assert result.cause is Cause.COMPLETED
    first, second = (output(tmp_path / "l", position).split() for position in (0, 1))
    assert (first[:3], second[:3]) == (["na", "0", "1"], ["nb", "1", "0"])
    # All of them meet at one place, which the first of them chose.
    assert first[3] == second[3]
    assert int(first[3].rpartition(":")[2]) > 0


def test_the_port_of_the_plan_is_where_they_meet(tmp_path: Path) -> None:
    allocation = Allocation(job="1", nodes=NODES, here="na")
    request = asked(tmp_path / "l", "import sys; print(sys.argv[1])", RENDEZVOUS)
    SlurmLauncher(allocation, 2345).launch(request)
    assert output(tmp_path / "l", 1).endswith(":2345")


def test_a_node_that_fails_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    code = """
import os, sys, time
if os.environ["SLURMD_NODENAME"] == "nb":
    sys.exit("RuntimeError: wrong")
time.sleep(60)
"""
    began = time.monotonic()
    result = carry_out(asked(tmp_path / "l", code))
    assert time.monotonic() - began < 20
    assert (result.cause, result.exit_status, result.node) == (Cause.CRASH, 1, "nb")
    assert "wrong" in result.what
    assert result.log == tmp_path / "l" / "nodes" / "1" / "output.log"
    assert left(tmp_path / "l") == []


def left(folder: Path) -> list[int]:
    orders = (json.loads(path.read_text()) for path in folder.glob("nodes/*/launch.json"))
    return [one.pid for order in orders for one in members(order["launch"])]


def test_a_limit_holds_on_every_node(tmp_path: Path) -> None:
    request = asked(tmp_path / "l", "import time; time.sleep(60)", silence_seconds=1.0)
    result = carry_out(request)
    assert (result.cause, result.exit_status) == (Cause.HANG, None)
    assert left(tmp_path / "l") == []


def test_a_node_that_cannot_be_reached_is_the_cause_whatever_the_others_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOWN_NODE", "nb")
    result = carry_out(asked(tmp_path / "l", "pass"))
    assert (result.cause, result.node) == (Cause.NODE, "nb")
    assert "no answer from nb: srun: error: Task launch failed on node nb" in result.what
    assert "nb cannot be reached" in result.what
    assert not result.cause.usable


def test_a_supervisor_that_is_killed_loses_its_node_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import os, signal, time
if os.environ["SLURMD_NODENAME"] == "nb":
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(60)
"""
    result = carry_out(asked(tmp_path / "l", code, wall_seconds=5.0))
    assert (result.cause, result.node) == (Cause.NODE, "nb")
    assert "nb: 1 processes were ended, 0 are alive" in result.what
    assert left(tmp_path / "l") == []


def test_an_interrupt_ends_every_share_before_it_is_passed_on(tmp_path: Path) -> None:
    def interrupt(signum: int, frame: object) -> None:
        raise Interrupted(signum)

    before = signal.signal(signal.SIGUSR2, interrupt)
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGUSR2))
    timer.start()
    try:
        with pytest.raises(Interrupted):
            carry_out(asked(tmp_path / "l", "import time; time.sleep(60)"))
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR2, before)
    assert left(tmp_path / "l") == []


def test_a_folder_that_was_used_is_refused(tmp_path: Path) -> None:
    request = asked(tmp_path / "l", "pass")
    carry_out(request)
    with pytest.raises(FolderError, match="an earlier launch has written here"):
        carry_out(request)


def test_a_launch_on_one_node_stays_here_where_here_is_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    code = "import os; print(os.environ.get('SLURMD_NODENAME'))"
    carry_out(asked(tmp_path / "here", code, nodes=1))
    carry_out(asked(tmp_path / "away", code, nodes=1), here=None)
    said = [(tmp_path / name / "output.log").read_text() for name in ("here", "away")]
    assert said == ["None\n", "na\n"]


def test_answers_come_in_the_order_of_the_requests(tmp_path: Path) -> None:
    launcher = SlurmLauncher(Allocation(job="1", nodes=NODES, here="na"))
    requests = (
        asked(tmp_path / "1", "pass", name="far"),
        asked(tmp_path / "2", "pass", name="near", nodes=1),
    )
    assert [result.name for result in launcher.together(requests)] == ["far", "near"]


MEET = """
import pathlib, sys, time
own, other = map(pathlib.Path, sys.argv[1:])
own.touch()
until = time.monotonic() + 20
while not other.exists():
    if time.monotonic() > until:
        sys.exit("ran alone")
    time.sleep(0.02)
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_launches_away_from_here_run_side_by_side(tmp_path: Path, nodes: int) -> None:
    launcher = SlurmLauncher(Allocation(job="1", nodes=NODES, here=None))
    marks = [str(tmp_path / mark) for mark in ("first", "second")]
    requests = (
        asked(tmp_path / "1", MEET, *marks, nodes=nodes),
        asked(tmp_path / "2", MEET, *reversed(marks), nodes=nodes),
    )
    assert [one.cause for one in launcher.together(requests)] == [Cause.COMPLETED] * 2


def test_launches_that_want_one_port_wait_for_each_other(tmp_path: Path) -> None:
    launcher = SlurmLauncher(Allocation(job="1", nodes=NODES, here=None), 2345)
    code = """
import pathlib, sys, time
mark = pathlib.Path(sys.argv[1] + sys.argv[2])
mark.touch()
time.sleep(0.3)
others = [one.name for one in mark.parent.glob("busy*") if one.name[:5] != mark.name[:5]]
mark.unlink()
sys.exit(f"beside {others}" if others else 0)
"""
    requests = tuple(
        asked(tmp_path / name, code, str(tmp_path / f"busy{name}"), POSITION) for name in "12"
    )
    assert [one.cause for one in launcher.together(requests)] == [Cause.COMPLETED] * 2
