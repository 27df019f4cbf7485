from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType

import pytest

from trn_validate import processes
from trn_validate.errors import FolderError, Interrupted, MeasurementError
from trn_validate.launch import Cause, LaunchRequest
from trn_validate.launch_local import LocalLauncher
from trn_validate.records import rank_file
from trn_validate.starting import child_environment
from trn_validate.supervisor import FACTS, ORDER, OUTPUT, PROCESSES


def until(holds: Callable[[], object], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Bench:
    """Makes requests for small scripts and knows what is left of them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def request(
        self,
        code: str,
        *,
        name: str = "one",
        argv: tuple[str, ...] = (),
        wall: float = 20.0,
        silence: float = 20.0,
        grace: float = 2.0,
        ranks: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> LaunchRequest:
        script = self.root / f"{name}.py"
        script.write_text(textwrap.dedent(code))
        return LaunchRequest(
            name=name,
            argv=argv or (sys.executable, str(script), str(self.root)),
            folder=self.root / name,
            ranks=ranks,
            records=self.root / "records" if ranks else None,
            env=env or {},
            wall_seconds=wall,
            silence_seconds=silence,
            grace_seconds=grace,
        )

    def launch_id(self, name: str = "one") -> str:
        answer: str = json.loads((self.root / name / ORDER).read_text())["launch"]
        return answer

    def alive(self, name: str = "one") -> list[int]:
        written = (self.root / name / ORDER).exists()
        return processes.alive(self.launch_id(name)) if written else []

    def supervisor(self, name: str = "one") -> int:
        told = json.loads((self.root / name / PROCESSES).read_text())
        return int(told["supervisor"].partition(":")[0])

    def facts(self, name: str = "one") -> dict[str, object]:
        read: dict[str, object] = json.loads((self.root / name / FACTS).read_text())
        return read

    def pid(self, name: str) -> int:
        """The pid that a script has written to a file of that name."""
        file = self.root / name
        assert until(lambda: file.exists() and file.read_text())
        return int(file.read_text())

    def output(self, name: str = "one") -> str:
        return (self.root / name / OUTPUT).read_text(errors="replace")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    left = {
        order.parent.name: bench.alive(order.parent.name) for order in tmp_path.glob("*/" + ORDER)
    }
    for name in left:
        processes.end(bench.launch_id(name))
    assert not any(left.values())


@pytest.fixture
def launcher() -> LocalLauncher:
    return LocalLauncher()


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """What SIGALRM raises here, one after the other, as the command line's handlers do.

    A child that writes RING in its code sends it when the time has come.
    """
    raising: list[BaseException] = []

    def ring(signum: int, frame: FrameType | None) -> None:
        raise raising.pop(0)

    monkeypatch.setenv("PIPELINE", str(os.getpid()))
    before = signal.signal(signal.SIGALRM, ring)
    yield raising
    signal.signal(signal.SIGALRM, before)
    assert raising == []


RING = 'import os, signal, time; os.kill(int(os.environ["PIPELINE"]), signal.SIGALRM)'


# How a launch ends by itself


def test_a_process_that_exits_with_0_is_completed_and_its_output_is_in_a_file(
    bench: Bench, launcher: LocalLauncher
) -> None:
    result = launcher.launch(
        bench.request(
            """
            import os, sys
            print("out")
            print("err", file=sys.stderr)
            print("input", repr(sys.stdin.read()), os.getsid(0) == os.getpid())
            print(os.path.realpath("/proc/self/fd/1"), os.path.realpath("/proc/self/fd/2"))
            """
        )
    )
    log = bench.root / "one" / OUTPUT
    assert (result.cause, result.exit_status, result.log) == (Cause.COMPLETED, 0, log)
    assert bench.output().splitlines() == ["out", "err", "input '' True", f"{log} {log}"]


def test_an_exit_status_is_told_with_the_last_line(bench: Bench, launcher: LocalLauncher) -> None:
    result = launcher.launch(bench.request("print('no luck'); raise SystemExit(3)"))
    assert (result.cause, result.exit_status) == (Cause.CRASH, 3)
    assert result.what == "exit status 3: no luck"
    assert result.excerpt == "no luck"


def test_a_command_that_does_not_exist_is_a_crash(bench: Bench, launcher: LocalLauncher) -> None:
    result = launcher.launch(bench.request("", argv=("/nowhere/torchrun",)))
    assert (result.cause, result.exit_status) == (Cause.CRASH, 127)
    assert "cannot start /nowhere/torchrun" in result.what


def test_a_big_log_with_undecodable_bytes_gives_a_small_excerpt(
    bench: Bench, launcher: LocalLauncher
) -> None:
    result = launcher.launch(
        bench.request(
            r"""
            import sys
            for n in range(300):
                sys.stdout.buffer.write(b"x" * 65535 + b"\n")
            sys.stdout.buffer.write(b"bad \xff\xfe bytes\n")
            sys.exit(1)
            """
        )
    )
    assert (bench.root / "one" / OUTPUT).stat().st_size > 19_000_000
    assert len(result.excerpt) < 7_000
    assert result.excerpt.splitlines()[-1] == "bad \ufffd\ufffd bytes"


def test_a_process_killed_from_outside_is_told_and_its_orphans_are_ended(
    bench: Bench, launcher: LocalLauncher
) -> None:
    result = launcher.launch(
        bench.request(
            """
            import os, signal, subprocess, sys
            for _ in range(3):
                subprocess.Popen(["sleep", "60"], start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    assert (result.cause, result.exit_status) == (Cause.KILLED, 137)
    assert bench.facts()["leftovers"] == 3
    assert bench.alive() == []


def test_a_grandchild_in_a_session_of_its_own_does_not_outlive_the_launch(
    bench: Bench, launcher: LocalLauncher
) -> None:
    result = launcher.launch(
        bench.request(
            """
            import subprocess, sys
            sleeper = ["sleep", "60"]
            code = (
                "import subprocess, sys;"
                f"child = subprocess.Popen({sleeper}, start_new_session=True);"
                "open(sys.argv[1] + '/pid', 'w').write(str(child.pid))"
            )
            subprocess.run([sys.executable, "-c", code, sys.argv[1]], start_new_session=True)
            """
        )
    )
    assert result.cause is Cause.COMPLETED
    assert result.what.endswith("killed: 1")
    assert processes.process(bench.pid("pid")) is None


# Limits


def test_the_wall_limit_ends_a_launch(bench: Bench, launcher: LocalLauncher) -> None:
    result = launcher.launch(
        bench.request(
            """
            import time
            while True: print("busy"); time.sleep(0.05)
            """,
            wall=1.0,
        )
    )
    assert (result.cause, result.exit_status) == (Cause.TIMEOUT, None)
    assert 1.0 <= result.seconds < 4
    assert "1 s" in result.what
    assert result.excerpt.endswith("busy")


def test_the_silence_limit_ends_a_launch_that_writes_nothing(
    bench: Bench, launcher: LocalLauncher
) -> None:
    result = launcher.launch(
        bench.request("import time; print('last words'); time.sleep(60)", silence=0.8)
    )
    assert (result.cause, result.exit_status) == (Cause.HANG, None)
    assert 0.8 <= result.seconds < 4
    assert result.excerpt == "last words"


def test_whatever_grows_breaks_the_silence(bench: Bench, launcher: LocalLauncher) -> None:
    files = {
        "output": "/dev/stdout",
        "rows": f"{bench.root}/records/rank-0.jsonl",
        "log": f"{bench.root}/log/ranks/none_x/attempt_0/0/stderr.log",
    }
    writing = """
        import os, sys, time
        os.makedirs(os.path.dirname({path!r}), exist_ok=True)
        for n in range(8):
            with open({path!r}, "a") as file: file.write("x")
            time.sleep(0.25)
        sys.exit(5)
        """
    results = launcher.together(
        tuple(
            bench.request(
                writing.format(path=path), name=name, silence=1.2, ranks=int(name == "rows")
            )
            for name, path in files.items()
        )
    )
    assert [result.exit_status for result in results] == [5, 5, 5]
    assert all(result.seconds > 1.9 for result in results)


def test_a_process_that_ignores_term_is_killed_after_the_grace(
    bench: Bench, launcher: LocalLauncher
) -> None:
    began = time.monotonic()
    result = launcher.launch(
        bench.request(
            """
            import signal, time
            signal.signal(signal.SIGTERM, lambda *_: print("refused"))
            while True: time.sleep(0.1)
            """,
            wall=1.0,
            grace=0.5,
        )
    )
    assert result.cause is Cause.TIMEOUT
    assert time.monotonic() - began >= 1.5
    assert bench.output() == "refused\n"
    assert bench.facts()["leftovers"] == 1


def test_a_process_that_obeys_term_is_given_time_to_clean_up(
    bench: Bench, launcher: LocalLauncher
) -> None:
    launcher.launch(
        bench.request(
            """
            import signal, sys, time
            def leave(*_):
                time.sleep(0.3)
                print("cleaned up")
                sys.exit()
            signal.signal(signal.SIGTERM, leave)
            while True: time.sleep(0.1)
            """,
            wall=1.0,
        )
    )
    assert bench.output() == "cleaned up\n"
    assert bench.facts()["leftovers"] == 0


def test_a_hang_shows_the_stack_of_the_main_thread(bench: Bench, launcher: LocalLauncher) -> None:
    result = launcher.launch(
        bench.request(
            """
            import faulthandler, os, signal, subprocess, sys, threading, time
            folder = sys.argv[1] + "/one/stacks"
            os.makedirs(folder)
            file = open(f"{folder}/{os.getpid()}.txt", "w")
            print("rank 0", file=file, flush=True)
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
            # Without a handler SIGUSR1 would end this one, and its exit would be printed.
            other = subprocess.Popen(["sleep", "60"])
            threading.Thread(target=lambda: print(other.wait()), daemon=True).start()
            def all_reduce():
                time.sleep(60)
            all_reduce()
            """,
            silence=1.2,
        )
    )
    assert result.cause is Cause.HANG
    assert result.log is not None
    assert result.log.parent == bench.root / "one" / "stacks"
    assert "in all_reduce" in result.excerpt.splitlines()[1]
    assert str(-signal.SIGUSR1) not in bench.output()


# Interruptions


@pytest.mark.parametrize(
    "error", [Interrupted(signal.SIGTERM), KeyboardInterrupt()], ids=["Interrupted", "Ctrl-C"]
)
def test_an_interrupt_ends_the_launch_and_is_raised_again(
    bench: Bench, launcher: LocalLauncher, alarms: list[BaseException], error: BaseException
) -> None:
    alarms.append(error)
    with pytest.raises(type(error)) as caught:
        launcher.launch(bench.request(f"print('here'); {RING}; time.sleep(60)"))
    assert caught.value is error
    assert bench.output() == "here\n"
    assert bench.facts()["ended"] == "interrupted"
    assert bench.alive() == []


def test_a_second_interrupt_ends_the_launch_at_once(
    bench: Bench, launcher: LocalLauncher, alarms: list[BaseException]
) -> None:
    first = Interrupted(signal.SIGINT)
    alarms.extend((first, Interrupted(signal.SIGTERM)))
    began = time.monotonic()
    with pytest.raises(Interrupted) as caught:
        launcher.launch(
            bench.request(
                f"""
                import signal
                def refuse(*_):
                    {RING}
                signal.signal(signal.SIGTERM, refuse)
                {RING}
                while True: time.sleep(0.1)
                """,
                grace=30,
            )
        )
    assert caught.value is first
    # Sooner than the grace that the first one would have given.
    assert time.monotonic() - began < 30
    assert bench.alive() == []


PIPELINE = """
import sys
from pathlib import Path
from trn_validate.launch import LaunchRequest
from trn_validate.launch_local import LocalLauncher
root = sys.argv[1]
LocalLauncher().launch(
    LaunchRequest(
        name="one",
        argv=(sys.executable, f"{root}/one.py"),
        folder=Path(root, "one"),
        wall_seconds=60,
        silence_seconds=60,
    )
)
"""

FAMILY = """
import subprocess, sys, time
subprocess.Popen(["sleep", "60"], start_new_session=True)
time.sleep(60)
"""


@pytest.fixture
def pipeline(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """Another pipeline, whose launch of two processes is under way."""
    (bench.root / "one.py").write_text(FAMILY)
    child = subprocess.Popen([sys.executable, "-c", PIPELINE, str(bench.root)])
    try:
        assert until(lambda: len(bench.alive()) == 2, 10)
        yield child
    finally:
        child.kill()
        child.wait()
        until(lambda: not bench.alive())


def test_a_pipeline_that_is_killed_takes_its_launch_along(
    bench: Bench, pipeline: subprocess.Popen[bytes]
) -> None:
    pipeline.kill()
    pipeline.wait()
    assert until(lambda: not bench.alive(), 2.0)
    assert until((bench.root / "one" / FACTS).exists, 2.0)
    assert bench.facts()["ended"] == "orphaned"


def test_strays_of_a_pipeline_and_a_supervisor_that_were_killed_are_found_and_ended(
    bench: Bench, pipeline: subprocess.Popen[bytes]
) -> None:
    os.kill(pipeline.pid, signal.SIGSTOP)
    os.kill(bench.supervisor(), signal.SIGKILL)
    pipeline.kill()
    pipeline.wait()
    strays = [s for s in processes.find_strays() if s.launch_id == bench.launch_id()]
    assert [stray.pid for stray in strays] == bench.alive()
    assert (sys.executable, f"{bench.root}/one.py") in [stray.argv for stray in strays]
    assert processes.end_strays(strays) == []
    assert bench.alive() == []


def test_a_terminals_interrupt_does_not_reach_the_supervisor_of_itself(
    bench: Bench, pipeline: subprocess.Popen[bytes]
) -> None:
    assert os.getsid(bench.supervisor()) == bench.supervisor() != os.getsid(pipeline.pid)


def test_the_processes_of_a_launch_under_way_are_no_strays(
    bench: Bench, pipeline: subprocess.Popen[bytes]
) -> None:
    assert bench.launch_id() not in {stray.launch_id for stray in processes.find_strays()}


def test_a_supervisor_that_is_killed_is_noticed_and_its_launch_ended(
    bench: Bench, launcher: LocalLauncher
) -> None:
    result = launcher.launch(
        bench.request(
            """
            import os, signal, subprocess, sys, time
            subprocess.Popen(["sleep", "60"], start_new_session=True)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
            """
        )
    )
    assert (result.cause, result.exit_status) == (Cause.KILLED, None)
    assert "supervisor" in result.what
    assert bench.alive() == []


def test_a_full_disk_is_told_although_no_facts_could_be_written(
    bench: Bench, launcher: LocalLauncher
) -> None:
    request = bench.request("pass")
    request.folder.mkdir()
    (request.folder / FACTS).with_suffix(".tmp").symlink_to("/dev/full")
    assert launcher.launch(request).cause is Cause.NO_SPACE


# Several at once


MEETING = """
import os, sys, time
mine, other = sys.argv[1] + "/met-{mine}", sys.argv[1] + "/met-{other}"
open(mine, "w").close()
while not os.path.exists(other): time.sleep(0.05)
sys.exit({status})
"""


def test_two_launches_run_at_once_and_are_answered_in_their_order(
    bench: Bench, launcher: LocalLauncher
) -> None:
    one, two = launcher.together(
        (
            bench.request(MEETING.format(mine="a", other="b", status=0), name="one"),
            bench.request(MEETING.format(mine="b", other="a", status=4), name="two"),
        )
    )
    assert (one.name, one.cause) == ("one", Cause.COMPLETED)
    assert (two.name, two.exit_status) == ("two", 4)


def test_one_interrupt_ends_all_that_run_at_once(
    bench: Bench, launcher: LocalLauncher, alarms: list[BaseException]
) -> None:
    alarms.append(Interrupted(signal.SIGINT))
    waiting = f"import time; open('{bench.root}/up', 'w').close(); time.sleep(60)"
    ringing = f"""
        import os, time
        while not os.path.exists("{bench.root}/up"): time.sleep(0.05)
        {RING}
        time.sleep(60)
        """
    with pytest.raises(Interrupted):
        launcher.together((bench.request(waiting, name="one"), bench.request(ringing, name="two")))
    assert bench.facts("one")["ended"] == bench.facts("two")["ended"] == "interrupted"
    assert bench.alive("one") == bench.alive("two") == []


def test_a_launch_that_cannot_start_ends_those_started_before_it(
    bench: Bench, launcher: LocalLauncher
) -> None:
    request = bench.request("import time; time.sleep(60)")
    with pytest.raises(FolderError, match="earlier launch"):
        launcher.together((request, request))
    assert bench.alive() == []


# What a launch is given


def test_a_child_does_not_take_itself_for_somebodys_rank(
    bench: Bench, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "kept")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    launcher.launch(bench.request(code, env={"ADDED": "added", "MASTER_PORT": "1"}))
    env = json.loads(bench.output())
    assert (env["KEPT"], env["ADDED"], env["MASTER_PORT"]) == ("kept", "added", "1")
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} & set(env)
    assert env[processes.LAUNCH] == bench.launch_id()


def test_the_environment_of_a_child_keeps_all_else() -> None:
    assert child_environment({"PATH": "/bin", "RANK": "0", "RANKS": "2"}) == {
        "PATH": "/bin",
        "RANKS": "2",
    }


def test_a_folder_that_a_launch_has_used_is_refused(bench: Bench, launcher: LocalLauncher) -> None:
    request = bench.request("pass")
    launcher.launch(request)
    with pytest.raises(FolderError, match="earlier launch"):
        launcher.launch(request)


def test_records_of_an_earlier_launch_are_refused(bench: Bench, launcher: LocalLauncher) -> None:
    request = bench.request("pass", ranks=2)
    assert request.records is not None
    request.records.mkdir()
    rank_file(request.records, 1).write_text("")
    with pytest.raises(FolderError, match=r"rank-1\.jsonl"):
        launcher.launch(request)


def test_a_folder_that_cannot_be_made_is_an_error(bench: Bench, launcher: LocalLauncher) -> None:
    (bench.root / "one").write_text("a file")
    with pytest.raises(MeasurementError, match="cannot be started"):
        launcher.launch(bench.request("pass"))


# Ranks


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torchrun")
def test_torchruns_first_failing_rank_is_named_with_its_own_log(
    bench: Bench, launcher: LocalLauncher
) -> None:
    request = bench.request(
        """
        import os, signal, sys, time
        print("rank", os.environ["RANK"], "speaks", file=sys.stderr)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
        ranks=2,
        argv=(
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--log-dir", str(bench.root / "one/ranks"), "--redirects", "3"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
            str(bench.root / "one.py"),
        ),
        wall=60,
        silence=60,
    )
    result = launcher.launch(request)
    assert (result.cause, result.rank) == (Cause.KILLED, 1)
    assert "SIGKILL" in result.what
    assert result.excerpt == "rank 1 speaks"
