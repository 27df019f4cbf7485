import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest

from trn_validate import hashes, paths
from trn_validate.check import Check
from trn_validate.errors import EvidenceError, FolderError, MeasurementError, UsageError
from trn_validate.run import Attempt, Run
from trn_validate.store import Store
from trn_validate.verdict import Artifact, Host, Outcome, Verdict, digest
from trn_validate.verdict_folder import VerdictFolder

STAGE = "baseline.eager"
NOW = datetime(2026, 12, 2, 2, 15, 30, tzinfo=UTC)
PLAN = "target: cpu\n"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "reports", checkout=tmp_path / "checkout")


@pytest.fixture
def run(store: Store) -> Run:
    return store.create("cpu", "native", PLAN, now=NOW)


def verdict(run: Run, attempt: Attempt, measured: float = 1.0, **more: Any) -> Verdict:
    check = Check(
        name="loss is finite", measured=measured, comparator="<=", limit=2.0, source="config"
    )
    return Verdict(
        **{
            "stage": attempt.stage,
            "path": run.path,
            "run": run.name,
            "attempt": attempt.number,
            "host": Host(root="/", target=run.target, reason="", trn2_functions=0),
            "device": "cpu",
            "expects": ("loss is finite",),
            "checks": (check,),
            "started_at": "2026-12-02T02:15:30Z",
            "seconds": 1.0,
            "inputs_sha256": "0" * 64,
            **more,
        }
    )


def write(run: Run, measured: float = 1.0, **more: Any) -> tuple[Verdict, Attempt]:
    attempt = run.new_attempt(STAGE)
    made = verdict(run, attempt, measured, **more)
    run.write(made, attempt)
    return made, attempt


def refuse(number: int) -> Callable[..., NoReturn]:
    def refusing(*_args: object, **_kwargs: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refusing


def halves(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if ".tmp" in path.name]


# runs


def test_a_run_folder_is_named_by_target_path_and_utc_start(run: Run) -> None:
    assert run.name == "cpu.native.20261202T021530Z"
    assert (run.target, run.path) == ("cpu", "native")
    assert (run.folder / "plan.yaml").read_text() == PLAN
    assert run.plan_text() == PLAN


def test_two_starts_in_one_second_do_not_collide_and_the_later_is_the_newest(store: Store) -> None:
    names = [store.create("cpu", "native", PLAN, now=NOW).name for _ in range(11)]
    assert names[1].endswith("Z-2") and names[10].endswith("Z-11")
    assert len(set(names)) == 11
    assert [r.name for r in store.runs()] == names[::-1]


def test_of_two_runs_of_any_plans_in_one_second_the_later_is_the_newest(store: Store) -> None:
    plans = [("trn2.48xlarge", "native"), ("cpu", "native"), ("cpu", "moe"), ("cpu", "native")]
    names = [store.create(*plan, PLAN, now=NOW).name for plan in plans]
    assert names[-1] == "cpu.native.20261202T021530Z-4"
    assert [run.name for run in store.runs()] == names[::-1]


def test_a_run_that_is_being_started_elsewhere_is_not_as_new_as_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(Path, "rename", refuse(errno.EIO))
        with pytest.raises(FolderError):
            store.create("trn2.48xlarge", "native", PLAN, now=NOW)
    assert store.create("cpu", "native", PLAN, now=NOW).name.endswith("Z-2")


def test_a_twin_that_outlived_its_run_does_not_date_the_next(store: Store) -> None:
    shutil.rmtree(store.create("cpu", "native", PLAN, now=NOW.replace(year=2030)).folder)
    assert store.create("cpu", "native", PLAN, now=NOW).name == "cpu.native.20261202T021530Z"


def test_a_clock_that_was_set_back_does_not_hide_the_new_run(store: Store) -> None:
    store.create("cpu", "native", PLAN, now=NOW)
    later = store.create("cpu", "native", PLAN, now=NOW.replace(year=2025))
    newest = store.newest("cpu", "native")
    assert newest is not None and newest.name == later.name


def test_the_newest_run_is_that_of_the_same_target_and_path(store: Store) -> None:
    store.create("cpu", "native", PLAN, now=NOW)
    other = store.create("trn2.48xlarge", "native", PLAN, now=NOW.replace(year=2027))
    moe = store.create("cpu", "moe", PLAN, now=NOW.replace(year=2028))
    assert store.runs()[0].name == moe.name
    for run in (other, moe):
        found = store.newest(run.target, run.path)
        assert found is not None and found.name == run.name
    assert store.newest("trn2.3xlarge", "native") is None


def test_what_is_no_run_folder_is_not_a_run(store: Store, run: Run) -> None:
    (store.root / "sample").mkdir()
    (store.root / "notes.txt").write_text("")
    (store.root / "cpu.native.20261202T021530Z.zip").write_text("")
    assert [r.name for r in store.runs()] == [run.name]


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").runs() == []
    assert Store(tmp_path / "none").newest("cpu", "native") is None
    assert not (tmp_path / "none").exists()


def test_a_run_that_was_only_half_made_is_no_run_and_its_name_is_not_used_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", refuse(errno.EIO))
        with pytest.raises(FolderError):
            store.create("cpu", "native", PLAN, now=NOW)
    assert store.runs() == []
    assert store.create("cpu", "native", PLAN, now=NOW).name.endswith("Z-2")


def test_the_plan_is_redacted_in_the_run_folder_and_whole_in_private(store: Store) -> None:
    text = f"data: {store.checkout}/tiny.txt\n"
    run = store.create("cpu", "native", text, now=NOW)
    assert run.plan_text() == text
    assert (run.folder / "plan.yaml").read_text() == "data: <repo>/tiny.txt\n"
    shutil.rmtree(run.private)
    assert run.plan_text() == "data: <repo>/tiny.txt\n"


def test_a_run_without_a_plan_says_so(run: Run) -> None:
    (run.folder / "plan.yaml").unlink()
    (run.private / "plan.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(EvidenceError, match="cannot be read"):
        run.plan_text()
    (run.private / "plan.yaml").unlink()
    with pytest.raises(EvidenceError, match="no plan"):
        run.plan_text()


def test_the_private_folder_is_for_its_user_alone(store: Store, run: Run) -> None:
    assert store.private.stat().st_mode & 0o077 == 0


# space and rights


def test_a_writable_folder_with_enough_space_is_accepted_and_left_empty(store: Store) -> None:
    store.check_writable(1)
    assert [path.name for path in store.root.rglob("*")] == [".private"]


@pytest.mark.parametrize("place", ["reports", "reports/deeper", "reports/.private"])
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path, place: str) -> None:
    store = Store(tmp_path / "reports" / ("deeper" if place.endswith("deeper") else ""))
    file = tmp_path / place.removesuffix("/deeper")
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    with pytest.raises(FolderError, match="a file is where a folder has to be"):
        store.check_writable(1)
    with pytest.raises(FolderError):
        store.create("cpu", "native", PLAN)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_read_only_folder_is_named_with_a_remedy(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(Path, "write_bytes", refuse(number))
    with pytest.raises(FolderError, match=r"reports.*cannot be written.*Make the folder writable"):
        store.check_writable(1)


def test_too_little_space_is_told_in_numbers(store: Store) -> None:
    with pytest.raises(FolderError, match=r"1000000\.0 GB are needed and [0-9.]+ [GM]B are free"):
        store.check_writable(10**15)


def test_a_full_file_system_is_told_in_numbers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    with pytest.raises(FolderError, match=r"no space is left.*[0-9.]+ [GM]B free"):
        store.check_writable(1)


def test_a_second_process_cannot_hold_the_same_run(store: Store, run: Run) -> None:
    again = Run(store.root, run.name, store.checkout)
    with run.lock(), pytest.raises(UsageError, match="another process is at work"), again.lock():
        pass
    with again.lock():
        pass


# verdicts


def test_a_verdict_comes_back_as_it_was_written(run: Run) -> None:
    attempt = run.new_attempt(STAGE)
    made = verdict(run, attempt)
    sha256 = run.write(made, attempt)
    assert run.read(STAGE) == made
    assert run.read_with_digest(STAGE) == (made, sha256)
    assert digest(run.verdict_path(STAGE).read_text()) == sha256
    assert run.stages_present() == (STAGE,)
    assert halves(run.folder) == []


def test_a_stage_that_never_ran_has_no_verdict(run: Run) -> None:
    assert run.read(STAGE) is None
    assert run.stages_present() == ()


def test_a_non_finite_number_survives_in_the_verdict(run: Run) -> None:
    write(run, float("nan"))
    found = run.read(STAGE)
    assert found is not None and found.outcome is Outcome.FAILED
    assert str(found.checks[0].measured) == "nan"


def test_a_replaced_verdict_moves_into_its_own_attempt(run: Run) -> None:
    first, _ = write(run, 1.0)
    before = run.verdict_path(STAGE).read_bytes()
    second, attempt = write(run, 9.0)
    assert attempt.number == 2
    assert (run.folder / STAGE / "1" / "verdict.json").read_bytes() == before
    assert run.read(STAGE) == second != first


def test_a_verdict_that_is_written_twice_for_one_attempt_is_kept_twice(run: Run) -> None:
    attempt = run.new_attempt(STAGE)
    for measured in (1.0, 1.25, 1.5):
        run.write(verdict(run, attempt, measured), attempt)
    kept = sorted(path.name for path in attempt.folder.iterdir())
    assert kept == ["verdict-2.json", "verdict.json"]


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_between_the_steps_of_replacing_a_verdict_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    first, _ = write(run, 1.0)
    before = run.verdict_path(STAGE).read_bytes()
    attempt = run.new_attempt(STAGE)
    calls = []
    real = os.replace

    def killed(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == step:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run.write(verdict(run, attempt, 1.5), attempt)
    assert run.verdict_path(STAGE).read_bytes() == before
    assert run.read(STAGE) == first
    assert halves(run.folder) == []

    run.write(verdict(run, attempt, 1.5), attempt)
    kept = [path.name for path in (run.folder / STAGE / "1").iterdir()]
    assert kept == ["verdict.json"]
    assert (run.folder / STAGE / "1" / "verdict.json").read_bytes() == before


def test_no_space_while_a_verdict_is_written_leaves_the_standing_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = write(run)
    attempt = run.new_attempt(STAGE)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse(errno.ENOSPC))
        with pytest.raises(FolderError, match="no space"):
            run.write(verdict(run, attempt, 1.5), attempt)
    assert run.read(STAGE) == first
    assert halves(run.folder) == []


def test_a_verdict_of_another_run_stage_or_attempt_is_not_written(run: Run) -> None:
    attempt = run.new_attempt(STAGE)
    for wrong in ({"run": "x"}, {"stage": "environment.device"}, {"attempt": 7}):
        with pytest.raises(ValueError, match="not a verdict of"):
            run.write(verdict(run, attempt).model_copy(update=wrong), attempt)
    assert run.read(STAGE) is None


def test_a_verdict_is_redacted_when_it_is_written(run: Run) -> None:
    write(run, facts={"where": f"{run.checkout}/x", "logs": f"{run.private}/baseline.eager/1"})
    found = run.read(STAGE)
    assert found is not None
    assert found.facts == {"where": "<repo>/x", "logs": "<run>/baseline.eager/1"}


FOREIGN = {
    "empty": b"",
    "blank": b"\n",
    "binary": bytes(range(256)),
    "no_utf_8": b'{"stage": "\xff"}',
    "byte_order_mark": b"\xef\xbb\xbf{}",
    "another_json": b'{"passed": true, "outcome": "passed"}',
    "a_list": b"[]",
    "a_number": b"1",
    "null": b"null",
    "deep": b'{"schema_version":"1","checks":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "long_number": b'{"schema_version":"1","seconds":' + b"9" * 10_000 + b"}",
    "lone_surrogate": b'{"schema_version":"1","stage":"\\ud800"}',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_file_that_is_no_verdict_is_never_a_pass(run: Run, content: bytes) -> None:
    run.verdict_path(STAGE).write_bytes(content)
    with pytest.raises(EvidenceError, match=re.escape(str(run.verdict_path(STAGE)))):
        run.read(STAGE)
    assert run.stages_present() == (STAGE,)


def test_a_half_written_verdict_is_never_a_pass(run: Run) -> None:
    write(run)
    path = run.verdict_path(STAGE)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(EvidenceError):
            run.read(STAGE)


def test_a_folder_in_the_place_of_a_verdict_is_unreadable_evidence(run: Run) -> None:
    run.verdict_path(STAGE).mkdir()
    with pytest.raises(EvidenceError, match="cannot be read"):
        run.read(STAGE)


def test_the_verdict_of_another_run_or_stage_is_never_a_pass(store: Store, run: Run) -> None:
    other = store.create("cpu", "native", PLAN, now=NOW)
    write(other)
    shutil.copy(other.verdict_path(STAGE), run.verdict_path(STAGE))
    with pytest.raises(EvidenceError, match=other.name):
        run.read(STAGE)
    shutil.copy(other.verdict_path(STAGE), other.verdict_path("kernels.nki"))
    with pytest.raises(EvidenceError, match=r"verdict of baseline\.eager"):
        other.read("kernels.nki")


def test_an_edited_outcome_is_never_a_pass(run: Run) -> None:
    write(run, 9.0)
    path = run.verdict_path(STAGE)
    path.write_text(path.read_text().replace('"failed"', '"passed"'))
    with pytest.raises(EvidenceError, match="says other than its numbers"):
        run.read(STAGE)


def test_an_unreadable_verdict_is_kept_when_it_is_replaced(run: Run) -> None:
    write(run)
    run.verdict_path(STAGE).write_bytes(b"half a verd")
    made, attempt = write(run)
    assert (attempt.folder / "unreadable.json").read_bytes() == b"half a verd"
    assert run.read(STAGE) == made


def test_a_bundle_is_read_without_a_private_twin(run: Run, tmp_path: Path) -> None:
    made, _ = write(run)
    shutil.copytree(run.folder, tmp_path / "bundle")
    assert VerdictFolder(tmp_path / "bundle", run.name).read(STAGE) == made


@pytest.mark.parametrize("name", ["", "eager", "../x.y", "a/b.c", ".private", "baseline.", "A.b"])
def test_a_name_that_is_no_stage_is_refused(run: Run, name: str) -> None:
    with pytest.raises(UsageError, match="not the name of a stage"):
        run.verdict_path(name)
    with pytest.raises(UsageError):
        run.new_attempt(name)


# attempts


def test_attempts_are_numbered_and_have_two_folders(run: Run) -> None:
    first, second = run.new_attempt(STAGE), run.new_attempt(STAGE)
    assert (first.number, second.number) == (1, 2)
    assert second.folder == run.folder / STAGE / "2"
    assert second.private == run.private / STAGE / "2"
    assert second.folder.is_dir() and second.private.is_dir()
    assert second.relative == "baseline.eager/2"
    assert run.attempts(STAGE) == (first, second)


@pytest.mark.parametrize("kept", ["folder", "private", "verdict"])
def test_a_number_is_never_used_twice(run: Run, kept: str) -> None:
    write(run)
    _, attempt = write(run)
    if kept != "verdict":
        run.verdict_path(STAGE).unlink()
    if kept != "folder":
        shutil.rmtree(attempt.folder)
    if kept != "private":
        shutil.rmtree(attempt.private)
    assert run.new_attempt(STAGE).number == 3


# publishing


def fill(run: Run, attempt: Attempt) -> None:
    launch = attempt.private / "reference"
    (launch / "logs").mkdir(parents=True)
    (launch / "dump" / "checkpoint").mkdir(parents=True)
    (launch / "spec.json").write_text(json.dumps({"records": str(launch), "name": "reference"}))
    (launch / "rank-0.jsonl").write_text('{"kind":"header","loss":1.2345678901234567e-05}\n{"cut')
    (launch / "logs" / "0.log").write_bytes(f"in {run.checkout}/a\r50%\r\xe4\n".encode("latin-1"))
    (launch / "capture.safetensors").write_bytes(b"\0\1")
    (launch / "dump" / "checkpoint" / "config.json").write_text("{}")
    (launch / "link.json").symlink_to("/etc/hostname")
    os.mkfifo(launch / "pipe.log")


def test_published_files_are_the_redacted_text_files(run: Run) -> None:
    attempt = run.new_attempt(STAGE)
    fill(run, attempt)
    done = run.publish(attempt)
    names = ("logs/0.log", "rank-0.jsonl", "spec.json")
    assert done == tuple(f"baseline.eager/1/reference/{name}" for name in names)
    launch = attempt.folder / "reference"
    spec = json.loads((launch / "spec.json").read_text())
    assert spec == {"records": "<run>/baseline.eager/1/reference", "name": "reference"}
    raw = (attempt.private / "reference" / "rank-0.jsonl").read_bytes()
    assert (launch / "rank-0.jsonl").read_bytes() == raw
    assert (launch / "logs" / "0.log").read_bytes() == b"in <repo>/a\r50%\r\\xe4\n"
    assert sorted(p.name for p in launch.iterdir()) == ["logs", "rank-0.jsonl", "spec.json"]


def test_publishing_twice_gives_the_same(run: Run) -> None:
    attempt = run.new_attempt(STAGE)
    fill(run, attempt)
    names = run.publish(attempt)
    before = [run.artifact(name) for name in names]
    assert run.publish(attempt) == names
    assert [run.artifact(name) for name in names] == before
    assert all(run.unchanged(artifact) for artifact in before)


def test_the_next_run_publishes_what_a_killed_one_left(store: Store, run: Run) -> None:
    done, left = run.new_attempt(STAGE), run.new_attempt(STAGE)
    empty = run.new_attempt("kernels.nki")
    fill(run, left)
    run.publish(done)
    (run.folder / ".kernels.nki.json.123.tmp").write_text("half")
    (left.folder / ".metadata.tmp").write_text("of a checkpoint")
    newer = store.create("cpu", "native", PLAN)
    with newer.lock():
        found = store.publish_leftovers(newer)
    assert found == (f"{run.name}/{left.relative}", f"{run.name}/{empty.relative}")
    assert (left.folder / "reference" / "spec.json").exists()
    assert not (left.private / "reference" / "dump").exists()
    assert [path.name for path in halves(run.folder)] == [".metadata.tmp"]
    assert store.publish_leftovers() == ()


def test_what_another_process_is_at_is_no_leftover(store: Store, run: Run) -> None:
    fill(run, run.new_attempt(STAGE))
    with Run(store.root, run.name, store.checkout).lock():
        assert store.publish_leftovers() == ()
    assert store.publish_leftovers() == (f"{run.name}/baseline.eager/1",)


def test_leftovers_of_a_run_without_a_private_twin_are_none(store: Store, run: Run) -> None:
    shutil.rmtree(run.private)
    assert run.publish_leftovers() == ()


@pytest.mark.parametrize("after", range(4))
def test_no_space_while_publishing_leaves_no_half_file_and_can_be_done_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    attempt = run.new_attempt(STAGE)
    fill(run, attempt)
    calls = []
    real = os.fsync

    def filling(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", filling)
        with pytest.raises(FolderError, match="no space"):
            run.publish(attempt)
    whole = {"0.log": 1, "rank-0.jsonl": 2, "spec.json": 1}
    for path in attempt.folder.rglob("*.*"):
        assert path.name in whole
        assert path.read_bytes().count(b"\n") + (path.suffix == ".json") >= 1
    assert halves(run.folder) == []
    assert run.publish_leftovers() == (attempt.relative,)


def test_a_full_device_while_copying_leaves_no_half_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = run.new_attempt(STAGE)
    (attempt.private / "long.log").write_text("line\n" * 100_000)
    # The very file that is written is one on which every write fails.
    monkeypatch.setattr(Path, "with_name", lambda path, _: _full(path))
    with pytest.raises(FolderError, match="no space"):
        run.publish(attempt)
    assert list(attempt.folder.iterdir()) == []


def _full(path: Path) -> Path:
    link = path.parent / "full"
    link.unlink(missing_ok=True)
    link.symlink_to("/dev/full")
    return link


# binary files and digests


def test_a_checkpoint_is_moved_out_of_private(run: Run) -> None:
    attempt = run.new_attempt(STAGE)
    source = attempt.private / "dump" / "step-3"
    source.mkdir(parents=True)
    (source / ".metadata").write_bytes(b"m")
    (source / "__0_0.distcp").write_bytes(b"weights")
    name = attempt.adopt(source, "seed/step-0")
    assert name == "baseline.eager/1/seed/step-0"
    assert not source.exists()
    assert [a.path for a in run.tree(name)] == [f"{name}/.metadata", f"{name}/__0_0.distcp"]
    assert attempt.adopt(source, "seed/step-0") == name


def test_nothing_is_overwritten_by_moving(run: Run) -> None:
    attempt = run.new_attempt(STAGE)
    for name in ("a", "b"):
        (attempt.private / name).write_text(name)
    attempt.adopt(attempt.private / "a", "kept")
    with pytest.raises(FolderError, match="nothing is overwritten"):
        attempt.adopt(attempt.private / "b", "kept")
    assert (attempt.folder / "kept").read_text() == "a"
    with pytest.raises(MeasurementError, match="no such file"):
        attempt.adopt(attempt.private / "c", "c")
    for outside in ("../up", "/etc/x", ""):
        with pytest.raises(ValueError, match="leads out"):
            attempt.adopt(attempt.private / "b", outside)


def data(run: Run, name: str = "data.bin", content: bytes = b"weights") -> Artifact:
    (run.folder / name).write_bytes(content)
    return run.artifact(name)


def test_an_artifact_names_digest_and_size(run: Run) -> None:
    artifact = data(run)
    assert (artifact.path, artifact.bytes) == ("data.bin", 7)
    assert artifact.sha256 == digest("weights")
    assert run.verify(artifact) == run.folder / "data.bin"


def test_an_unchanged_file_is_not_read_again_even_by_the_next_process(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = data(run)
    monkeypatch.setattr(hashes, "file_digest", refuse(errno.EIO))
    assert run.unchanged(artifact)
    assert Run(store.root, run.name, store.checkout).unchanged(artifact)


def test_a_touched_file_is_read_again_and_holds(run: Run) -> None:
    artifact = data(run)
    os.utime(run.folder / "data.bin", ns=(1, 1))
    assert run.unchanged(artifact)


@pytest.mark.parametrize("content", [b"weighty", b"longer than it was", b""])
def test_an_edited_file_is_changed(run: Run, content: bytes) -> None:
    artifact = data(run)
    (run.folder / "data.bin").write_bytes(content)
    os.utime(run.folder / "data.bin", ns=(5, 5))
    assert not run.unchanged(artifact)
    with pytest.raises(EvidenceError, match="the file was changed"):
        run.verify(artifact)


def test_an_edit_with_the_size_and_time_restored_is_caught_by_verify(run: Run) -> None:
    artifact = data(run)
    path = run.folder / "data.bin"
    before = path.stat()
    path.write_bytes(b"weighty")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(EvidenceError, match="the file was changed"):
        run.verify(artifact)


def test_a_missing_file_is_changed(run: Run) -> None:
    artifact = data(run)
    (run.folder / "data.bin").unlink()
    assert not run.unchanged(artifact)
    with pytest.raises(EvidenceError, match="is missing"):
        run.verify(artifact)
    with pytest.raises(MeasurementError, match="is missing"):
        run.artifact("data.bin")


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "link", ".", ""])
def test_an_artifact_outside_of_the_run_is_never_read(run: Run, path: str) -> None:
    (run.folder.parent / "secret").write_text("weights")
    (run.folder / "link").symlink_to("../secret")
    artifact = Artifact(path=path, sha256=digest("weights"), bytes=7)
    assert not run.unchanged(artifact)
    with pytest.raises(EvidenceError):
        run.verify(artifact)
    with pytest.raises(MeasurementError):
        run.artifact(path)


def test_a_folder_without_files_is_no_tree(run: Run) -> None:
    (run.folder / "empty").mkdir()
    for name in ("empty", "missing", "plan.yaml"):
        with pytest.raises(MeasurementError, match="missing or holds no files"):
            run.tree(name)


def test_a_file_that_changes_while_it_is_read_has_no_digest(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.folder / "data.bin").write_bytes(b"a")

    def growing(path: Path) -> str:
        path.write_bytes(b"more")
        return "0" * 64

    monkeypatch.setattr(hashes, "file_digest", growing)
    with pytest.raises(MeasurementError, match="changes while it is read"):
        run.artifact("data.bin")


@pytest.mark.parametrize("memory", [b"", b"[]", b'{"data.bin": 1}', b'{"data.bin": ["0",7,1]}'])
def test_a_spoilt_memory_of_digests_only_means_reading_again(
    store: Store, run: Run, memory: bytes
) -> None:
    artifact = data(run)
    (run.private / "hashes.json").write_bytes(memory)
    again = Run(store.root, run.name, store.checkout)
    assert again.unchanged(artifact)
    assert not again.unchanged(artifact.model_copy(update={"sha256": "0" * 64}))


def test_artifacts_are_judged_where_nothing_can_be_written(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = data(run)
    (run.private / "hashes.json").unlink()
    monkeypatch.setattr(Path, "write_bytes", refuse(errno.EROFS))
    assert Run(store.root, run.name, store.checkout).unchanged(artifact)


# writing


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    paths.write_atomic(path, b"old")
    monkeypatch.setattr(os, "replace", refuse(errno.EIO))
    with pytest.raises(FolderError, match="the file system refused"):
        paths.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        steps.append("sync")
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        steps.append("name")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    paths.write_atomic(tmp_path / "file", b"x")
    assert steps == ["sync", "name", "sync"]
