from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from trn_validate import processes
from trn_validate.processes import LAUNCH, SUPERVISOR
from trn_validate.supervisor import FACTS, ORDER, OUTPUT, PROCESSES, Order, Supervisor, write

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(60)")


def until(holds: Callable[[], object], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def order(launch_id: str, *argv: str) -> Order:
    return Order(
        launch=launch_id,
        argv=list(argv),
        env={"TOLD": "yes"},
        records=None,
        wall_seconds=30.0,
        silence_seconds=30.0,
        grace_seconds=2.0,
    )


class Supervised:
    """A supervisor that was started by hand, as the launcher would."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self.folder = folder
        self.launch_id = f"test-{os.getpid()}-{time.monotonic_ns()}"
        write(folder / ORDER, asdict(order(self.launch_id, *argv)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trn_validate.supervisor", str(folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def started(self) -> bool:
        return until(lambda: processes.alive(self.launch_id))

    def facts(self) -> dict[str, object]:
        assert self.process.wait(10) == 0
        read: dict[str, object] = json.loads((self.folder / FACTS).read_text())
        return read


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(*argv: str) -> Supervised:
        started.append(Supervised(tmp_path, *argv))
        return started[-1]

    yield start
    for one in started:
        with one.process:
            one.process.kill()
        processes.end(one.launch_id)


def tagged(launch_id: str, supervisor: str, *argv: str) -> subprocess.Popen[bytes]:
    """A process that looks as if it belonged to a launch."""
    env = {**os.environ, LAUNCH: launch_id, SUPERVISOR: supervisor}
    return subprocess.Popen(argv or SLEEP, env=env, start_new_session=True)


def identity(pid: int) -> str:
    found = processes.process(pid)
    assert found is not None
    return f"{pid}:{found.start}"


def test_the_supervisor_starts_with_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import trn_validate.supervisor;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    roots = set(answer.stdout.decode().split())
    assert roots - set(sys.stdlib_module_names) == {"trn_validate"}


def test_the_facts_of_an_exit_say_how_and_when(supervise: Callable[..., Supervised]) -> None:
    one = supervise(sys.executable, "-c", "import os; print(os.environ['TOLD']); os._exit(3)")
    facts = one.facts()
    assert (facts["ended"], facts["exit_status"]) == ("exited", 3)
    assert (facts["leftovers"], facts["alive"]) == (0, [])
    assert isinstance(facts["seconds"], float)
    assert 0 < facts["seconds"] < 5


def test_a_signal_to_the_child_is_told_as_a_shell_would(
    supervise: Callable[..., Supervised],
) -> None:
    one = supervise(sys.executable, "-c", "import os; os.abort()")
    assert one.facts()["exit_status"] == 128 + signal.SIGABRT


def test_a_command_that_is_not_there_exits_as_in_a_shell(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    one = supervise("/nowhere/python")
    assert one.facts()["exit_status"] == 127
    assert "cannot start /nowhere/python" in (tmp_path / OUTPUT).read_text()


def test_who_supervises_is_written_before_the_end(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    one = supervise(*SLEEP)
    assert one.started()
    told = json.loads((tmp_path / PROCESSES).read_text())
    assert told == {"launch": one.launch_id, "supervisor": identity(one.process.pid)}
    assert not (tmp_path / FACTS).exists()


def test_a_terminated_supervisor_ends_its_launch_first(
    supervise: Callable[..., Supervised],
) -> None:
    one = supervise(*SLEEP)
    assert one.started()
    one.process.terminate()
    facts = one.facts()
    assert (facts["ended"], facts["exit_status"]) == ("interrupted", None)
    assert processes.alive(one.launch_id) == []


def test_the_end_of_the_pipe_ends_the_launch(supervise: Callable[..., Supervised]) -> None:
    one = supervise(*SLEEP)
    assert one.started()
    assert one.process.stdin is not None
    one.process.stdin.close()
    assert one.facts()["ended"] == "orphaned"
    assert processes.alive(one.launch_id) == []


def test_a_full_disk_is_the_supervisors_exit_status(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / FACTS).with_suffix(".tmp").symlink_to("/dev/full")
    one = supervise(sys.executable, "-S", "-c", "pass")
    assert one.process.wait(10) == errno.ENOSPC
    assert not (tmp_path / FACTS).exists()


def test_ranks_are_told_apart_from_their_helpers_and_their_end_is_timed(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "rank.py").write_text(
        "import os, subprocess, sys, time\n"
        "helper = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(1.2)'])\n"
        "open(f'{sys.argv[1]}/pid-{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
        "time.sleep(0.9 if os.environ['RANK'] == '1' else 1.4)\n"
    )
    (tmp_path / "agent.py").write_text(
        "import os, subprocess, sys\n"
        "argv = [sys.executable, f'{sys.argv[1]}/rank.py', sys.argv[1]]\n"
        "ranks = [subprocess.Popen(argv, env={**os.environ, 'RANK': r}, start_new_session=True)\n"
        "         for r in '01']\n"
        "for rank in ranks: rank.wait()\n"
    )
    began = time.time()
    facts = supervise(sys.executable, str(tmp_path / "agent.py"), str(tmp_path)).facts()
    pids = {rank: int((tmp_path / f"pid-{rank}").read_text()) for rank in "01"}
    assert facts["rank_pids"] == pids
    gone = facts["rank_gone"]
    assert isinstance(gone, dict)
    assert began < gone["1"] < gone["0"] < time.time()


def test_a_helper_that_is_seen_before_its_rank_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, helper = processes.Process(50, 1, "7"), processes.Process(40, 50, "8")
    found = {helper: {"RANK": "0"}, rank: {"RANK": "0"}}
    monkeypatch.setattr(processes, "members", lambda launch_id, above: found)
    supervisor = Supervisor(tmp_path, order("unused"))
    supervisor.look()
    assert supervisor.ranks == {"0": rank}


def test_a_descendant_without_the_id_is_a_member_too(
    supervise: Callable[..., Supervised],
) -> None:
    bare = f"subprocess.Popen({list(SLEEP)!r}, env={{}}, start_new_session=True)"
    one = supervise(sys.executable, "-c", f"import subprocess; print({bare}.pid, flush=True)")
    assert one.facts()["leftovers"] == 1
    pid = int((one.folder / OUTPUT).read_text())
    assert processes.process(pid) is None


def test_a_process_is_known_by_its_start_and_not_by_its_pid_alone() -> None:
    me = processes.process(os.getpid())
    assert me is not None
    assert processes.is_alive(me)
    assert not processes.is_alive(me._replace(start="1"))


def test_a_process_that_waits_to_be_reaped_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    try:
        assert until(lambda: processes.process(child.pid) is None)
    finally:
        child.wait()


def test_the_processes_of_a_launch_are_found_and_ended_by_its_id() -> None:
    mine, other = tagged("mine", ""), tagged("other", "")
    try:
        assert until(lambda: processes.alive("mine") == [mine.pid])
        assert processes.end("mine") == (1, [])
        assert mine.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for one in (mine, other):
            one.kill()
            one.wait()


def test_a_process_whose_supervisor_lives_is_no_stray() -> None:
    kept = tagged("kept", identity(os.getpid()))
    reused = tagged("reused", f"{os.getpid()}:1")
    try:
        assert until(lambda: len(processes.alive("kept") + processes.alive("reused")) == 2)
        strays = {stray.launch_id: stray for stray in processes.find_strays()}
        assert "kept" not in strays
        assert strays["reused"] == (reused.pid, "reused", SLEEP)
    finally:
        for one in (kept, reused):
            one.kill()
            one.wait()


def test_a_stray_is_not_ended_once_its_pid_is_somebody_elses() -> None:
    one = tagged("new", f"{os.getpid()}:1")
    try:
        assert until(lambda: processes.alive("new"))
        assert processes.end_strays([processes.Stray(one.pid, "old", ())]) == []
        assert one.poll() is None
        assert processes.end_strays([processes.Stray(one.pid, "new", ())]) == []
        assert one.wait(5) == -signal.SIGKILL
    finally:
        one.kill()
        one.wait()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, {"a": 1})
    with pytest.raises(TypeError):
        write(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
