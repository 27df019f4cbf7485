from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_training import PARAMETERS, Rig, calm_host, two_ladders_plan
from trn_validate.accepted import load_reference, stage_of_reference
from trn_validate.errors import EvidenceError
from trn_validate.gate import PASSED


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A run whose reference was made."""
    calm_host(monkeypatch)
    rig = Rig(tmp_path)
    for stage in ("environment.device", "environment.imports", "baseline.eager"):
        assert rig.walk(only=stage) == PASSED
    yield rig


def test_the_stage_that_makes_the_reference_of_a_ladder(tmp_path: Path) -> None:
    plan = two_ladders_plan(tmp_path)
    assert stage_of_reference(plan, "debug") == "baseline.eager"
    assert stage_of_reference(plan, "full") == "parallelism.full_fsdp"


def test_a_reference_is_read_with_its_seed_steps_and_processes(finished: Rig) -> None:
    reference = load_reference(finished.context("baseline.checkpoint"), "debug")
    assert (reference.seed / ".metadata").is_file()
    assert [step.step for step in reference.yardstick.steps] == [1, 2, 3, 4, 5, 6]
    assert reference.yardstick.parameters == PARAMETERS
    assert reference.thing.attempt == "baseline.eager/1"
    assert len(reference.thing.pids) == 1


@pytest.mark.parametrize("file", ["seed/__0_0.distcp", "reference/records/rank-0.jsonl"])
def test_a_file_of_the_reference_that_was_changed_is_refused(finished: Rig, file: str) -> None:
    path = finished.run.folder / "baseline.eager/1" / file
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b" \n")
    context = finished.context("baseline.checkpoint")
    with pytest.raises(EvidenceError, match="the file was changed"):
        load_reference(context, "debug")


def test_a_change_that_size_and_time_do_not_tell_is_found_before_use(finished: Rig) -> None:
    path = finished.run.folder / "baseline.eager/1/reference/records/rank-0.jsonl"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"tokens":1024', b'"tokens":1025'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert finished.standing("baseline.eager").freshness.fresh
    with pytest.raises(EvidenceError, match="the file was changed"):
        finished.walk(only="baseline.checkpoint")
    assert finished.run.read("baseline.checkpoint") is None


def test_a_reference_that_is_gone_is_refused(finished: Rig) -> None:
    context = finished.context("baseline.checkpoint")
    shutil.rmtree(finished.run.folder / "baseline.eager/1/reference")
    with pytest.raises(EvidenceError, match="missing"):
        load_reference(context, "debug")


def test_a_rerun_of_the_rerun_does_not_touch_what_later_stages_read(finished: Rig) -> None:
    path = finished.run.folder / "baseline.eager/1/rerun/records/rank-0.jsonl"
    context = finished.context("baseline.checkpoint")
    path.unlink()
    assert load_reference(context, "debug").yardstick.parameters == PARAMETERS


def test_without_a_verdict_there_is_no_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm_host(monkeypatch)
    with pytest.raises(EvidenceError, match=r"baseline\.eager has no verdict"):
        load_reference(Rig(tmp_path).context("baseline.checkpoint"), "debug")
