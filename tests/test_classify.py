from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trn_validate.base import Record
from trn_validate.classify import cause_of, classify
from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.records import Closing, Failure, Header, Step, failure_file, rank_file
from trn_validate.spec import Degrees
from trn_validate.supervisor import Facts

PIDS = {"0": 100, "1": 101, "2": 102, "3": 103}
CONNECTION = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3000"


def header(rank: int, world_size: int) -> Header:
    return Header(
        launch="test",
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        dp_rank=rank,
        pid=100 + rank,
        started=1.5e9,
        python="3.11",
        versions={},
        torchtitan_device="cpu",
        parameter_device="cpu",
        comm_backend="gloo",
        degrees=Degrees(dp_shard=world_size),
        local_batch_size=1,
        accumulation=1,
        parameters=10,
        vocab_size=10,
        threads=1,
        replaced=(),
        hooks=(),
    )


def step(number: int) -> Step:
    return Step(
        step=number,
        loss=1.0,
        loss_here=True,
        grad_norm=1.0,
        learning_rate=1e-3,
        tokens=8,
        rows="0",
        row_count=1,
        shapes=((1, 8),),
        seconds={},
        peak_memory_bytes=1,
    )


class Folder:
    """The folders of one launch, filled as its ranks and its supervisor would."""

    def __init__(self, root: Path, ranks: int) -> None:
        self.ranks = ranks
        self.folder = root / "launch"
        self.records = root / "records"
        self.folder.mkdir()
        self.records.mkdir()
        self.log("")

    def log(self, text: str) -> None:
        (self.folder / "output.log").write_text(text)

    def rank(self, rank: int, steps: int = 2, closing: int | None = None) -> None:
        lines: list[Record] = [header(rank, self.ranks), *(step(n + 1) for n in range(steps))]
        if closing is not None:
            lines.append(Closing(rank=rank, steps=closing, seconds={}))
        text = "".join(line.model_dump_json() + "\n" for line in lines)
        rank_file(self.records, rank).write_text(text)

    def finished(self, *ranks: int) -> None:
        for rank in ranks:
            self.rank(rank, 2, closing=2)

    def failure(self, rank: int, at: float, kind: str, message: str, chain: str = "") -> None:
        head = "Traceback (most recent call last):\n  File 'x', line 1\n"
        failure = Failure(
            rank=rank,
            pid=100 + rank,
            at=at,
            type=kind,
            message=message,
            traceback=f"{chain}{head}{kind}: {message}\n",
        )
        failure_file(self.records, rank).write_text(failure.model_dump_json())

    def stderr(self, rank: int, text: str | bytes) -> Path:
        file = self.folder / f"ranks/none_abc/attempt_0/{rank}/stderr.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def stacks(self, pid: int, text: str) -> Path:
        file = self.folder / "stacks" / f"{pid}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    def judge(self, facts: Facts) -> LaunchResult:
        request = LaunchRequest(
            name="test",
            argv=("python", "-m", "x"),
            folder=self.folder,
            ranks=self.ranks,
            records=self.records if self.ranks else None,
            wall_seconds=60,
            silence_seconds=30,
        )
        return classify(request, facts)


@pytest.fixture
def two(tmp_path: Path) -> Folder:
    return Folder(tmp_path, 2)


@pytest.fixture
def plain(tmp_path: Path) -> Folder:
    return Folder(tmp_path, 0)


def exited(status: int, **gone: float) -> Facts:
    return Facts(
        ended="exited",
        exit_status=status,
        seconds=5.0,
        rank_pids=PIDS,
        rank_gone={name.removeprefix("rank"): at for name, at in gone.items()},
    )


def torchrun_table(*rows: tuple[int, int], closed: tuple[int, ...] = ()) -> str:
    sent = "".join(
        f"W1202 api.py:1028] Sending process {100 + rank} closing signal SIGTERM\n"
        for rank in closed
    )
    return sent + "".join(
        f"[{index}]:\n  time      : 2026-12-02_03:21:42\n  host      : localhost\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {100 + rank})  (SIGNAL)\n  error_file: <N/A>\n"
        for index, (rank, code) in enumerate(rows)
    )


# Completed or not


def test_a_launch_whose_every_rank_closed_and_that_exits_with_0_is_completed(two: Folder) -> None:
    two.finished(0, 1)
    result = two.judge(exited(0, rank0=9.0, rank1=9.0))
    assert (result.cause, result.exit_status, result.seconds) == (Cause.COMPLETED, 0, 5.0)
    assert (result.rank, result.what, result.excerpt) == (None, "", "")


def test_exit_status_0_with_a_rank_that_left_no_closing_line_is_a_crash(two: Folder) -> None:
    two.finished(0)
    two.rank(1, 2)
    result = two.judge(exited(0, rank0=9.0, rank1=8.0))
    assert (result.cause, result.rank) == (Cause.CRASH, 1)
    assert "1 of 2 ranks" in result.what


def test_exit_status_0_with_no_record_at_all_is_a_crash(two: Folder) -> None:
    result = two.judge(exited(0))
    assert (result.cause, result.rank) == (Cause.CRASH, 0)
    assert "2 of 2 ranks" in result.what


def test_a_closing_line_that_counts_other_steps_than_were_recorded_completes_nothing(
    two: Folder,
) -> None:
    two.finished(0)
    two.rank(1, steps=1, closing=2)
    assert two.judge(exited(0)).cause is Cause.CRASH


def test_an_unreadable_record_is_a_crash_that_says_where(two: Folder) -> None:
    two.finished(0)
    rank_file(two.records, 1).write_text('{"kind": "header"}\n')
    result = two.judge(exited(0))
    assert result.cause is Cause.CRASH
    assert "rank-1.jsonl:1" in result.what


def test_a_failing_exit_after_every_rank_closed_is_a_teardown_crash(two: Folder) -> None:
    two.finished(0, 1)
    two.log(torchrun_table((1, -11)))
    result = two.judge(exited(1))
    assert (result.cause, result.exit_status) == (Cause.TEARDOWN, 1)
    assert "after every rank had finished" in result.what


def test_a_failure_after_the_closing_lines_is_a_teardown_crash_whatever_the_status(
    two: Folder,
) -> None:
    two.finished(0, 1)
    two.failure(1, 9.0, "RuntimeError", "destroy_process_group")
    for status in (0, 1):
        result = two.judge(exited(status))
        assert (result.cause, result.rank) == (Cause.TEARDOWN, 1)
        assert "destroy_process_group" in result.what


def test_ranks_that_were_asked_for_without_a_records_folder_never_complete(tmp_path: Path) -> None:
    request = LaunchRequest(
        name="x", argv=("x",), folder=tmp_path, ranks=1, wall_seconds=1, silence_seconds=1
    )
    assert classify(request, exited(0)).cause is Cause.CRASH


def test_processes_that_outlived_a_completed_launch_are_told(two: Folder) -> None:
    two.finished(0, 1)
    result = two.judge(Facts(ended="exited", exit_status=0, leftovers=3))
    assert result.cause is Cause.COMPLETED
    assert result.what.endswith("killed: 3")


# Limits


@pytest.mark.parametrize(
    ("ended", "cause", "text"),
    [
        ("wall", Cause.TIMEOUT, "60 s"),
        ("silence", Cause.HANG, "30 s"),
        ("interrupted", Cause.INTERRUPTED, "interrupted"),
        ("orphaned", Cause.INTERRUPTED, "died"),
    ],
)
def test_what_ended_a_launch_from_without_is_its_cause(
    two: Folder, ended: str, cause: Cause, text: str
) -> None:
    two.rank(0)
    two.rank(1)
    result = two.judge(Facts(ended=ended, seconds=61.0))  # type: ignore[arg-type]
    assert (result.cause, result.exit_status, result.rank) == (cause, None, None)
    assert text in result.what


def test_a_failure_before_a_limit_is_named_with_its_rank(two: Folder) -> None:
    two.rank(0)
    two.failure(1, 5.0, "KeyError", "'missing'")
    result = two.judge(Facts(ended="silence"))
    assert (result.cause, result.rank) == (Cause.HANG, 1)
    assert "rank 1: KeyError: 'missing'" in result.what


def test_the_rank_that_is_behind_is_named_in_a_hang(two: Folder) -> None:
    two.rank(0, 5)
    two.rank(1, 3)
    assert two.judge(Facts(ended="silence")).rank == 1


def test_no_rank_is_named_in_a_hang_of_equals(two: Folder) -> None:
    two.rank(0, 3)
    two.rank(1, 3)
    assert two.judge(Facts(ended="silence")).rank is None


def test_a_hang_after_all_work_says_so(two: Folder) -> None:
    two.finished(0, 1)
    result = two.judge(Facts(ended="silence"))
    assert result.cause is Cause.HANG
    assert "every rank had finished" in result.what


def test_a_hang_shows_where_the_main_thread_of_its_rank_stands(two: Folder) -> None:
    two.rank(0, 5)
    two.rank(1, 3)
    stack = "".join(f'  File "deep.py", line {n} in deep\n' for n in range(40))
    dump = f"rank 1\nThread 0x1 (most recent call first):\n  other\n\nCurrent thread 0x2:\n{stack}"
    two.stacks(100, dump)
    file = two.stacks(101, dump)
    result = two.judge(Facts(ended="silence", rank_pids=PIDS))
    assert result.log == file
    assert result.excerpt.splitlines()[0] == "Current thread 0x2:"
    assert "line 0 in deep" in result.excerpt
    assert len(result.excerpt.splitlines()) == 20


def test_without_stacks_a_hang_shows_the_log(two: Folder) -> None:
    two.stacks(100, "rank 0\n")
    two.log("step 3\n")
    result = two.judge(Facts(ended="silence", rank_pids=PIDS))
    assert (result.log, result.excerpt) == (two.folder / "output.log", "step 3")


# Which rank


def test_the_earliest_failure_is_the_one_reported(two: Folder) -> None:
    two.failure(0, 12.0, "RuntimeError", "second")
    two.failure(1, 11.0, "RuntimeError", "first")
    result = two.judge(exited(1, rank0=12.1, rank1=12.0))
    assert (result.rank, result.what) == (1, "rank 1: RuntimeError: first")


def test_a_lost_connection_is_no_root_cause_even_if_it_was_told_first(two: Folder) -> None:
    two.failure(0, 10.0, "RuntimeError", CONNECTION)
    two.failure(1, 11.0, "KeyError", "the reason")
    assert two.judge(exited(1)).rank == 1


def test_a_rank_that_had_finished_its_work_is_not_the_first(two: Folder) -> None:
    two.finished(0)
    two.failure(0, 10.0, "RuntimeError", "the store is gone")
    two.failure(1, 11.0, "KeyError", "the reason")
    assert two.judge(exited(1)).rank == 1


def test_a_rank_that_died_without_a_word_comes_before_those_that_lost_it(two: Folder) -> None:
    two.failure(0, 10.0, "RuntimeError", CONNECTION)
    two.log(torchrun_table((0, 1), (1, -11)))
    result = two.judge(exited(1, rank0=10.2, rank1=10.1))
    assert (result.cause, result.rank) == (Cause.CRASH, 1)
    assert "SIGSEGV" in result.what


def test_a_rank_that_died_before_it_was_ever_seen_is_known_from_torchrun(two: Folder) -> None:
    two.failure(0, 10.0, "RuntimeError", CONNECTION)
    two.log(torchrun_table((1, -6)))
    result = two.judge(exited(1))
    assert result.rank == 1
    assert "SIGABRT" in result.what


def test_ranks_that_torchrun_ended_are_not_the_first(two: Folder) -> None:
    two.log(torchrun_table((0, -15), (1, -11), closed=(0,)))
    result = two.judge(exited(1, rank0=10.0, rank1=10.0))
    assert result.rank == 1


def test_of_ranks_that_died_the_first_seen_gone_is_reported(tmp_path: Path) -> None:
    four = Folder(tmp_path, 4)
    result = four.judge(exited(1, rank0=10.3, rank1=10.2, rank2=10.1, rank3=10.4))
    assert result.rank == 2


def test_a_lost_connection_alone_is_reported_as_a_crash(two: Folder) -> None:
    two.failure(0, 10.0, "RuntimeError", CONNECTION)
    result = two.judge(exited(1))
    assert (result.cause, result.rank) == (Cause.CRASH, 0)


def test_a_failure_that_was_cut_off_still_names_its_rank(two: Folder) -> None:
    failure_file(two.records, 1).write_text('{"rank": 1, "pid"')
    assert two.judge(exited(1, rank1=10.0)).rank == 1


# Causes of failures


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("ModuleNotFoundError", "No module named 'triton'", Cause.IMPORT),
        ("ImportError", "cannot import name 'x' from 'y'", Cause.IMPORT),
        ("OSError", "libnrt.so.1: cannot open shared object file: No such file", Cause.IMPORT),
        ("MemoryError", "", Cause.OUT_OF_MEMORY),
        ("OutOfMemoryError", "neuron out of memory. Tried to allocate 2 GB", Cause.OUT_OF_MEMORY),
        ("torch.OutOfMemoryError", "anything", Cause.OUT_OF_MEMORY),
        (
            "RuntimeError",
            'nrt_tensor_allocate status=4 message="Allocation Failure"',
            Cause.OUT_OF_MEMORY,
        ),
        (
            "RuntimeError",
            "[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate",
            Cause.OUT_OF_MEMORY,
        ),
        ("OSError", "[Errno 28] No space left on device: '/x'", Cause.NO_SPACE),
        ("OSError", "[Errno 98] Address already in use", Cause.PORT),
        (
            "DistNetworkError",
            "The server socket has failed to listen on any. EADDRINUSE",
            Cause.PORT,
        ),
        (
            "DistNetworkError",
            "The client socket has failed to connect to [x]:1 (errno: 111 - Connection refused).",
            Cause.PORT,
        ),
        ("RuntimeError", "Timed out waiting 100000ms for recv operation to complete", Cause.HANG),
        ("DistStoreError", "Timed out after 301 seconds waiting for clients.", Cause.HANG),
        ("ValueError", "global_batch_size must be divisible", Cause.CONFIGURATION),
        ("TypeError", "unexpected keyword", Cause.CONFIGURATION),
        ("AssertionError", "attn_backend", Cause.CONFIGURATION),
        ("NotImplementedError", "PP refuses tied weights", Cause.CONFIGURATION),
        ("SystemExit", "2", Cause.CONFIGURATION),
        ("RuntimeError", "Loss is not finite", Cause.CRASH),
        ("KeyError", "'x'", Cause.CRASH),
    ],
)
def test_a_failure_names_its_cause(two: Folder, kind: str, message: str, cause: Cause) -> None:
    two.rank(0, steps=0)
    two.failure(1, 5.0, kind, message)
    result = two.judge(exited(1))
    assert (result.cause, result.rank) == (cause, 1)
    assert result.what.startswith(f"rank 1: {kind}: {message}"[:250].strip())


def test_a_refusal_after_a_step_is_no_matter_of_configuration(two: Folder) -> None:
    two.rank(1, steps=1)
    two.failure(1, 5.0, "ValueError", "odd")
    assert two.judge(exited(1)).cause is Cause.CRASH


def test_what_an_error_was_raised_from_names_the_cause(two: Folder) -> None:
    chain = (
        "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
    )
    two.failure(0, 5.0, "RuntimeError", "unexpected pos 64 vs 0", chain)
    assert two.judge(exited(1)).cause is Cause.NO_SPACE


def test_an_optional_import_that_failed_before_is_not_the_cause(two: Folder) -> None:
    chain = (
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'fast'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
    )
    two.failure(0, 5.0, "RuntimeError", "the slow way fails too", chain)
    assert two.judge(exited(1)).cause is Cause.CRASH


def test_source_text_in_a_stack_names_no_cause(two: Folder) -> None:
    chain = (
        "Traceback (most recent call last):\n  File 'a.py', line 3, in f\n"
        "    raise MemoryError('out of memory')\n"
    )
    two.failure(0, 5.0, "RuntimeError", "other", chain)
    assert two.judge(exited(1)).cause is Cause.CRASH


@pytest.mark.parametrize("code", [-9, -15])
def test_a_rank_that_was_ended_by_a_signal_from_outside_was_killed(two: Folder, code: int) -> None:
    two.log(torchrun_table((1, code)))
    two.stderr(1, "an out of memory that was dealt with\n")
    result = two.judge(exited(1, rank1=10.0))
    assert (result.cause, result.rank) == (Cause.KILLED, 1)


@pytest.mark.parametrize("status", [137, 143])
def test_a_torchrun_that_was_ended_from_outside_was_killed(two: Folder, status: int) -> None:
    two.rank(0)
    two.failure(
        1, 10.0, "DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed."
    )
    result = two.judge(exited(status, rank0=10.0))
    assert (result.cause, result.rank, result.exit_status) == (Cause.KILLED, None, status)


def test_a_torchrun_that_obeyed_a_signal_was_killed(two: Folder) -> None:
    two.log("W1202 api.py:753] Received 15 death signal, shutting down workers\n")
    result = two.judge(exited(1, rank0=10.0, rank1=10.0))
    assert result.cause is Cause.KILLED
    assert "Received 15 death signal" in result.what


def test_a_failure_before_the_kill_stays_the_cause(two: Folder) -> None:
    two.failure(1, 10.0, "ValueError", "odd")
    result = two.judge(exited(137))
    assert (result.cause, result.rank) == (Cause.CONFIGURATION, 1)


def test_a_rank_that_left_no_failure_is_known_by_its_last_words(two: Folder) -> None:
    two.log(torchrun_table((1, 1)))
    two.stderr(
        1,
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'x', line 1\n"
        "[rank1]: ModuleNotFoundError: No module named 'trn_validate'\n",
    )
    result = two.judge(exited(1, rank1=10.0))
    assert (result.cause, result.rank) == (Cause.IMPORT, 1)
    assert result.what.endswith("No module named 'trn_validate'")


def test_an_abort_in_native_code_is_known_by_its_last_words(two: Folder) -> None:
    two.log(torchrun_table((0, -6)))
    two.stderr(0, "terminate called\n  what():  Allocation Failure\n")
    assert two.judge(exited(1, rank0=10.0)).cause is Cause.OUT_OF_MEMORY


def test_a_rendezvous_that_fails_before_any_rank_is_a_matter_of_the_port(two: Folder) -> None:
    two.log(
        "Traceback (most recent call last):\n  File 'x'\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to\n"
    )
    result = two.judge(exited(1))
    assert (result.cause, result.rank) == (Cause.PORT, None)


# A supervisor that was lost


@pytest.mark.parametrize(
    ("status", "cause"), [(137, Cause.KILLED), (errno.ENOSPC, Cause.NO_SPACE), (1, Cause.CRASH)]
)
def test_a_lost_supervisor_is_told_by_its_exit_status(
    two: Folder, status: int, cause: Cause
) -> None:
    two.finished(0, 1)
    (two.folder / "supervisor.log").write_text("Traceback\nRuntimeError: odd\n")
    result = two.judge(Facts(ended="lost", exit_status=status))
    assert (result.cause, result.exit_status) == (cause, None)
    assert ("odd" in result.excerpt) is (cause is Cause.CRASH)


# Plain processes


def test_a_plain_process_that_exits_with_0_is_completed(plain: Folder) -> None:
    assert plain.judge(exited(0)).cause is Cause.COMPLETED


@pytest.mark.parametrize(
    ("status", "log", "cause", "what"),
    [
        (3, "a\nthree\n", Cause.CRASH, "exit status 3: three"),
        (3, "", Cause.CRASH, "exit status 3"),
        (137, "working\n", Cause.KILLED, "the launch was ended from outside: ended by SIGKILL"),
        (139, "working\n", Cause.CRASH, "ended by SIGSEGV: working"),
        (
            1,
            "Traceback (most recent call last):\n  File 'x'\nImportError: no\n",
            Cause.IMPORT,
            "exit status 1: ImportError: no",
        ),
        (
            1,
            "Traceback (most recent call last):\n  File 'x'\nValueError: no\n",
            Cause.CRASH,
            "exit status 1: ValueError: no",
        ),
        (1, "OSError: [Errno 28] No space left on device", Cause.NO_SPACE, None),
    ],
)
def test_a_plain_process_is_judged_by_its_status_and_its_log(
    plain: Folder, status: int, log: str, cause: Cause, what: str | None
) -> None:
    plain.log(log)
    result = plain.judge(exited(status))
    assert (result.cause, result.rank, result.exit_status) == (cause, None, status)
    assert what is None or result.what == what


# Logs


def test_the_excerpt_is_the_end_of_the_first_failing_ranks_log(two: Folder) -> None:
    two.log("torchrun says\n")
    two.failure(1, 5.0, "KeyError", "x")
    file = two.stderr(1, "".join(f"line {n}\n" for n in range(50)))
    two.stderr(0, "other\n")
    result = two.judge(exited(1))
    assert result.log == file
    assert result.excerpt.splitlines() == [f"line {n}" for n in range(30, 50)]


def test_an_empty_log_of_a_rank_leaves_the_word_to_the_output(two: Folder) -> None:
    two.log("torchrun says\n")
    two.failure(1, 5.0, "KeyError", "x")
    two.stderr(1, "")
    result = two.judge(exited(1))
    assert (result.log, result.excerpt) == (two.folder / "output.log", "torchrun says")


def test_an_excerpt_is_bounded_and_harmless_whatever_is_in_the_log(two: Folder) -> None:
    two.failure(1, 5.0, "KeyError", "x")
    two.stderr(1, b"y" * 2_000_000 + b"\n\x1b[31mred\x1b[0m \xff\xfe\x07 end\n")
    result = two.judge(exited(1))
    assert len(result.excerpt) < 7_000
    assert result.excerpt.splitlines()[-1] == "red \ufffd\ufffd? end"


def test_what_is_one_bounded_line(two: Folder) -> None:
    two.failure(1, 5.0, "KeyError", "x\ny" * 1000)
    what = two.judge(exited(1)).what
    assert "\n" not in what
    assert len(what) <= 300


def test_a_launch_without_a_log_has_none(two: Folder) -> None:
    (two.folder / "output.log").unlink()
    result = two.judge(exited(1))
    assert (result.log, result.excerpt) == (None, "")


def test_causes_are_tried_in_their_order() -> None:
    assert cause_of(["Timed out waiting", "CUDA out of memory"]) is Cause.OUT_OF_MEMORY
    assert cause_of(["nothing to see"]) is None
