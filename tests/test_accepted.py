from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fake_captures import SHAPES
from tests.fake_training import PARAMETERS, Rig, calm_host, climbed, two_ladders_plan
from trn_validate.accepted import load_reference, load_rung, stage_of_reference
from trn_validate.control import MEASURES, measured_noise
from trn_validate.errors import EvidenceError
from trn_validate.gate import PASSED
from trn_validate.ladder import resolve


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A run whose reference was made."""
    calm_host(monkeypatch)
    rig = Rig(tmp_path)
    for stage in (
        "environment.device",
        "environment.imports",
        "environment.collectives",
        "baseline.eager",
    ):
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
    assert len(reference.thing.processes) == 1


def test_a_reference_is_read_with_what_it_kept_and_the_noise_of_its_control(finished: Rig) -> None:
    ours = load_reference(finished.context("baseline.checkpoint"), "debug").yardstick
    for capture in (ours.kept.start, ours.kept.gradient, ours.kept.end):
        assert capture is not None
        assert [name for name, _ in capture.tensors()] == list(SHAPES)
    assert ours.kept.split == ""
    assert ours.noise == measured_noise(finished.verdict("baseline.eager").measures)
    assert ours.noise.gradient_relative > 0


@pytest.mark.parametrize("figure", MEASURES.values())
def test_a_reference_without_all_of_its_noise_judges_nothing(finished: Rig, figure: str) -> None:
    context = finished.context("baseline.checkpoint")
    verdict = context.earlier["baseline.eager"]
    less = {name: value for name, value in verdict.measures.items() if name != figure}
    earlier = {**context.earlier, "baseline.eager": verdict.model_copy(update={"measures": less})}
    with pytest.raises(EvidenceError, match="the reference has no control run"):
        load_reference(replace(context, earlier=earlier), "debug")


@pytest.mark.parametrize(
    "file",
    [
        "seed/__0_0.distcp",
        "reference/records/rank-0.jsonl",
        "reference/captures/start.stage-0.safetensors",
        "reference/captures/gradient.stage-0.safetensors",
        "reference/captures/end.stage-0.safetensors",
    ],
)
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


# Reading the run of a rung


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A run in which every stage passed."""
    with climbed(tmp_path_factory.mktemp("climbed")) as rig:
        yield rig


def test_the_first_rung_is_the_reference_itself(done: Rig) -> None:
    context = done.context("kernels.compile")
    first = resolve(done.plan.ladders[0])[0]
    assert load_rung(context, first) == load_reference(context, "debug")


def test_a_later_rung_is_read_with_the_start_and_the_noise_of_its_reference(done: Rig) -> None:
    context = done.context("kernels.compile")
    tp = resolve(done.plan.ladders[0])[2]
    reference, found = load_reference(context, "debug"), load_rung(context, tp)
    assert found.thing.attempt.startswith("parallelism.tp/")
    assert found.thing.layout == "dp_shard2 x tp2, accumulation 1"
    assert len(found.thing.processes) == 4
    assert found.seed == reference.seed
    ours, theirs = found.yardstick, reference.yardstick
    assert (ours.noise, ours.kept.start) == (theirs.noise, theirs.kept.start)
    assert ours.kept.gradient is not None
    assert ours.kept.gradient.folder == done.run.folder / found.thing.attempt / "tp/captures"
    assert [name for name, _ in ours.kept.gradient.tensors()] == list(SHAPES)
    assert len(found.step_seconds) == 6


def test_a_rung_without_a_verdict_is_refused(done: Rig) -> None:
    context = done.context("kernels.compile")
    earlier = {name: v for name, v in context.earlier.items() if name != "parallelism.tp"}
    tp = resolve(done.plan.ladders[0])[2]
    with pytest.raises(EvidenceError, match=r"parallelism\.tp has no verdict"):
        load_rung(replace(context, earlier=earlier), tp)


@pytest.mark.parametrize("file", ["records/rank-3.jsonl", "captures/end.stage-0.safetensors"])
def test_a_file_of_a_rung_that_was_changed_is_refused(done: Rig, file: str) -> None:
    context = done.context("kernels.compile")
    tp = resolve(done.plan.ladders[0])[2]
    path = done.run.folder / load_rung(context, tp).thing.attempt / "tp" / file
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b" ")
    with pytest.raises(EvidenceError, match="the file was changed"):
        load_rung(context, tp)
    path.write_bytes(data)
    assert load_rung(context, tp).yardstick.parameters == PARAMETERS
