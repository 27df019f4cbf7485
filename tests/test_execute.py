from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import check
from tests.fake_training import Rig, Stub, calm_host, holding, not_holding, tree
from trn_validate.errors import (
    EvidenceError,
    FolderError,
    Interrupted,
    MeasurementError,
    exit_status,
)
from trn_validate.rerun import rerun_command
from trn_validate.run import Run
from trn_validate.stage import Context, Findings, Unmeasured
from trn_validate.verdict import Outcome, Problem, Verdict

STAGE = "stub.one"


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    calm_host(monkeypatch)


Act = Callable[[Context], Findings]


def execute(folder: Path, act: Act) -> tuple[Rig, Verdict]:
    """A run of one stage that acts so, and the verdict that it left on the disk."""
    rig = Rig(folder, stages=[Stub(STAGE, act)])
    rig.executor.execute(rig.gate.stages[0], rig.standing(STAGE).expected, ())
    return rig, rig.verdict(STAGE)


def raising(error: Exception) -> Act:
    def act(context: Context) -> Findings:
        raise error

    return act


def test_findings_become_a_verdict_of_this_run_attempt_and_host(tmp_path: Path) -> None:
    rig, verdict = execute(tmp_path, holding)
    assert verdict.outcome is Outcome.PASSED
    assert (verdict.stage, verdict.run, verdict.attempt) == (STAGE, rig.run.name, 1)
    assert verdict.host.target == "cpu"
    assert "no sign of a Neuron device" in verdict.host.reason
    assert verdict.inputs_sha256 == rig.standing(STAGE).expected.sha256
    assert verdict.started_at.endswith("+00:00")


def test_a_stage_that_finds_nothing_has_not_passed(tmp_path: Path) -> None:
    _, verdict = execute(tmp_path, lambda context: Findings(expects=()))
    assert verdict.outcome is Outcome.ERROR


def test_a_stage_that_leaves_out_a_check_has_not_passed(tmp_path: Path) -> None:
    def act(context: Context) -> Findings:
        return Findings(expects=("it holds", "and this"), checks=[check(name="it holds")])

    _, verdict = execute(tmp_path, act)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.missing == ("and this",)


def test_unsupported_is_told_with_its_reason(tmp_path: Path) -> None:
    _, verdict = execute(tmp_path, lambda context: Findings(expects=(), unsupported="no kernels"))
    assert (verdict.outcome, verdict.unsupported) == (Outcome.UNSUPPORTED, "no kernels")


def test_what_could_not_be_measured_is_an_error_with_its_problem(tmp_path: Path) -> None:
    problem = Problem(cause="hang", what="rank 3 hangs", rank=3, step=2)
    _, verdict = execute(tmp_path, raising(Unmeasured(problem)))
    assert (verdict.outcome, verdict.problem) == (Outcome.ERROR, problem)


def test_a_check_that_says_no_makes_it_failed_though_nothing_else_was_measured(
    tmp_path: Path,
) -> None:
    problem = Problem(cause="crash", what="Loss is not finite")
    no = check(name="finite", measured=float("nan"))
    _, verdict = execute(tmp_path, raising(Unmeasured(problem, (no,))))
    assert verdict.outcome is Outcome.FAILED
    assert [c.name for c in verdict.failed_checks] == ["finite"]
    assert verdict.problem == problem


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MeasurementError("the file changes while it is read"), "error"),
        (FolderError("no space is left"), "no_space"),
    ],
)
def test_an_error_of_the_measurement_is_an_error(
    tmp_path: Path, error: Exception, cause: str
) -> None:
    _, verdict = execute(tmp_path, raising(error))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert (verdict.problem.cause, verdict.problem.what) == (cause, str(error))


def test_an_exception_is_a_defect_of_ours_whose_traceback_is_in_a_log(tmp_path: Path) -> None:
    rig, verdict = execute(tmp_path, raising(KeyError("reference")))
    assert verdict.outcome is Outcome.ERROR
    problem = verdict.problem
    assert problem is not None
    assert problem.cause == "internal"
    assert problem.what == "a defect of trn-validate: KeyError: 'reference'"
    assert problem.excerpt == ""
    log = (rig.run.folder / problem.log).read_text()
    assert log.startswith("Traceback (most recent call last)")
    assert log.rstrip().endswith("KeyError: 'reference'")
    assert problem.log in {artifact.path for artifact in verdict.artifacts}


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_its_verdict_and_goes_on(
    tmp_path: Path, signum: int, status: int
) -> None:
    with pytest.raises(Interrupted) as caught:
        execute(tmp_path, raising(Interrupted(signum)))
    assert exit_status(caught.value) == status
    (file,) = (tmp_path / "reports").glob(f"*/{STAGE}.json")
    told = json.loads(file.read_text())
    assert (told["outcome"], told["problem"]["cause"]) == ("error", "interrupted")


def test_changed_evidence_is_not_for_a_stage_to_answer(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="changed"):
        execute(tmp_path, raising(EvidenceError("the seed was changed")))
    assert not list((tmp_path / "reports").glob(f"*/{STAGE}.json"))


def test_changed_evidence_leaves_its_texts_and_no_dump(tmp_path: Path) -> None:
    def act(context: Context) -> Findings:
        text_writer(context)
        raise EvidenceError("the seed was changed")

    rig = Rig(tmp_path, stages=[Stub(STAGE, act)])
    with pytest.raises(EvidenceError, match="the seed was changed"):
        rig.executor.execute(rig.gate.stages[0], rig.standing(STAGE).expected, ())
    assert (rig.run.folder / STAGE / "1/launch/output.log").exists()
    assert not list(tmp_path.rglob("dump"))
    assert rig.run.publish_leftovers() == ()


def test_changed_evidence_is_told_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "publish", no_space)
    with pytest.raises(EvidenceError, match="changed"):
        execute(tmp_path, raising(EvidenceError("the seed was changed")))


# Settling: what a verdict names is published and hashed before it may pass


def text_writer(context: Context) -> Findings:
    (context.attempt.private / "launch").mkdir()
    (context.attempt.private / "launch/output.log").write_text(f"in {context.attempt.private}\n")
    (context.attempt.private / "launch/dump").mkdir()
    (context.attempt.private / "launch/dump/step-1.log").write_text("large")
    findings = holding(context)
    findings.artifacts = [f"{context.attempt.relative}/launch"]
    return findings


def test_texts_are_published_without_the_names_of_this_machine_and_hashed(tmp_path: Path) -> None:
    rig, verdict = execute(tmp_path, text_writer)
    (artifact,) = verdict.artifacts
    assert artifact.path == f"{STAGE}/1/launch/output.log"
    published = rig.run.folder / artifact.path
    assert published.read_text() == f"in <run>/{STAGE}/1\n"
    assert artifact.bytes == published.stat().st_size


def test_dumps_are_dropped_and_never_published(tmp_path: Path) -> None:
    rig, _ = execute(tmp_path, text_writer)
    assert not list(tmp_path.rglob("step-1.log"))
    assert (rig.run.private / STAGE / "1/launch/output.log").exists()


def test_dumps_are_dropped_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "publish", no_space)
    _, verdict = execute(tmp_path, text_writer)
    assert verdict.outcome is Outcome.ERROR
    assert not list(tmp_path.rglob("dump"))


def no_space(*arguments: object, **named: object) -> object:
    raise FolderError("no space is left on the file system", where="here")


def test_a_stage_whose_artifacts_could_not_be_written_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "publish", no_space)
    _, verdict = execute(tmp_path, text_writer)
    assert [c.passed for c in verdict.checks] == [True]
    assert verdict.outcome is Outcome.ERROR
    assert verdict.artifacts == ()
    assert verdict.problem is not None
    assert verdict.problem.cause == "no_space"


def test_a_check_that_said_no_stays_said_without_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "publish", no_space)
    _, verdict = execute(tmp_path, not_holding)
    assert verdict.outcome is Outcome.FAILED


def test_an_artifact_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(self: Run, relative: str) -> object:
        raise MeasurementError("the file changes while it is read", where=relative)

    monkeypatch.setattr(Run, "tree", changing)
    _, verdict = execute(tmp_path, text_writer)
    assert verdict.outcome is Outcome.ERROR


def test_an_interrupt_while_files_are_hashed_leaves_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Run, relative: str) -> object:
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(Run, "tree", interrupted)
    with pytest.raises(Interrupted):
        execute(tmp_path, text_writer)
    (file,) = (tmp_path / "reports").glob(f"*/{STAGE}.json")
    told = json.loads(file.read_text())
    assert (told["outcome"], told["problem"]["cause"]) == ("error", "interrupted")


def test_a_verdict_that_cannot_be_written_is_an_error_and_not_a_wrong_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "write", no_space)
    with pytest.raises(MeasurementError, match=r"no verdict of stub\.one") as caught:
        execute(tmp_path, holding)
    assert exit_status(caught.value) == 4


def test_a_full_disk_in_the_middle_of_a_stage_is_an_error_and_half_a_file_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        if str(target).endswith("output.log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)  # type: ignore[arg-type]

    real = os.replace
    monkeypatch.setattr(os, "replace", full)
    rig, verdict = execute(tmp_path, text_writer)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problem is not None
    assert "no space is left" in verdict.problem.what
    assert not [name for name in tree(rig.run.folder) if name.endswith(".tmp")]


# Attempts


def test_a_replaced_verdict_is_kept_in_the_folder_of_its_attempt(tmp_path: Path) -> None:
    rig, first = execute(tmp_path, holding)
    rig.executor.execute(rig.gate.stages[0], rig.standing(STAGE).expected, ())
    assert rig.verdict(STAGE).attempt == 2
    kept = (rig.run.folder / STAGE / "1/verdict.json").read_text()
    assert Verdict.from_json(kept, where="kept") == first


def test_a_blocked_verdict_names_what_is_in_the_way_and_is_not_written_twice(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, stages=[Stub(STAGE, holding)])
    expected = rig.standing(STAGE).expected
    one = rig.executor.block(rig.gate.stages[0], expected, "stub.zero")
    assert (one.outcome, one.blocked_by) == (Outcome.BLOCKED, "stub.zero")
    assert one.rerun.endswith("--only stub.zero")
    before = tree(rig.run.folder)
    assert rig.executor.block(rig.gate.stages[0], expected, "stub.zero") == one
    assert tree(rig.run.folder) == before
    other = rig.executor.block(rig.gate.stages[0], expected, "stub.other")
    assert (other.blocked_by, other.attempt) == ("stub.other", 2)


def test_a_verdict_names_the_command_that_reruns_it(tmp_path: Path) -> None:
    rig, verdict = execute(tmp_path, holding)
    assert verdict.rerun == rerun_command(rig.plan, rig.run, STAGE)
