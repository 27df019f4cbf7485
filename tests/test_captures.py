from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.builders import ladder_of
from tests.fake_captures import MOMENTS, SHAPES, written
from tests.fake_training import (
    carried_out,
    forgotten,
    lacking,
    unwritten,
)
from trn_validate.captures import Capture, read_capture
from trn_validate.config import Plan
from trn_validate.errors import EvidenceError, MeasurementError
from trn_validate.folded import Records
from trn_validate.launching import Trial
from trn_validate.ranks import read_each

NAMES = list(SHAPES)


RUNGS = [
    {"name": "baseline"},
    {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
    {"name": "pp", "extends": "fsdp", "pp": 2},
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("plan"), RUNGS)


def gradients(trial: Trial) -> Capture:
    found = read_capture(trial.records, trial.captures, "gradient")
    assert found is not None
    return found


# What the ranks kept


def test_every_parameter_of_a_moment_is_found_in_forward_order(plan: Plan, tmp_path: Path) -> None:
    trial = carried_out(tmp_path, plan, "baseline", keep_start=True)
    for moment in MOMENTS:
        found = read_capture(trial.records, trial.captures, moment)
        assert found is not None
        tensors = dict(found.tensors())
        assert list(found.names) == list(tensors) == NAMES
        assert {name: tensor.shape for name, tensor in tensors.items()} == SHAPES
        assert all(tensor.dtype == np.float64 for tensor in tensors.values())
        norms = {name: float(np.linalg.norm(tensor)) for name, tensor in tensors.items()}
        assert found.norms == pytest.approx(norms)
        assert not found.absent
        assert not found.sketched


def test_the_stages_of_a_pipeline_are_put_together_in_their_order(
    plan: Plan, tmp_path: Path
) -> None:
    found = gradients(carried_out(tmp_path, plan, "pp"))
    assert [record.stage for record in found.records] == [0, 1]
    assert list(found.names) == [name for name, _ in found.tensors()] == NAMES
    assert len(set(found.digests.values())) == len(NAMES)


def test_a_file_is_read_from_the_first_rank_of_a_stage(plan: Plan, tmp_path: Path) -> None:
    trial = carried_out(tmp_path, plan, "pp")
    names = [f"gradient.stage-{stage}.safetensors" for stage in (0, 1)]
    ranks = read_each(Path(trial.spec.records), 4)
    lines = [line for _, record in ranks for line in record.captures]
    assert [line.file for line in lines if line.what == "gradient"] == [
        *(names[0], None),
        *(names[1], None),
    ]
    assert {line.file for line in lines if line.what == "start"} == {None}
    assert [record.file for record in gradients(trial).records] == names


def test_a_stage_that_kept_nothing_leaves_nothing_to_compare(plan: Plan, tmp_path: Path) -> None:
    trial = carried_out(tmp_path, plan, "pp", forgotten("gradient", 2), forgotten("gradient", 3))
    assert read_capture(trial.records, trial.captures, "gradient") is None
    assert read_capture(trial.records, trial.captures, "end") is not None


def test_ranks_that_are_not_there_kept_nothing() -> None:
    assert read_capture(Records(), Path("none"), "gradient") is None
    assert Records().apart == ""


def test_a_gradient_that_is_absent_is_said_to_be(plan: Plan, tmp_path: Path) -> None:
    found = gradients(carried_out(tmp_path, plan, "pp", lacking("gradient", NAMES[1], NAMES[-1])))
    assert found.absent == (NAMES[1], NAMES[-1])
    assert [*found.names] == [name for name in NAMES if name not in found.absent]


# Files that are not what their record says


def test_a_file_that_is_missing_is_refused_with_its_place(plan: Plan, tmp_path: Path) -> None:
    found = gradients(carried_out(tmp_path, plan, "baseline", unwritten("gradient")))
    with pytest.raises(EvidenceError, match="no file of tensors") as caught:
        dict(found.tensors())
    assert caught.value.where == str(tmp_path / "baseline/captures/gradient.stage-0.safetensors")
    assert "Rerun the stage" in caught.value.todo


def test_a_rank_that_names_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no file of tensors"):
        dict(written(tmp_path, {"a": [1.0]}, file=None).tensors())


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_file_that_was_cut_is_refused(plan: Plan, tmp_path: Path, keep: int) -> None:
    found = gradients(carried_out(tmp_path, plan, "baseline"))
    path = found.folder / "gradient.stage-0.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EvidenceError, match="no file of tensors"):
        dict(found.tensors())


@pytest.mark.parametrize(
    "inside",
    [{"a": [1.0]}, {"a": [1.0], "b": [2.0], "c": [3.0]}, {"a": [1.0], "B": [2.0]}, {}],
    ids=str,
)
def test_a_file_with_other_tensors_than_its_record_is_refused(
    tmp_path: Path, inside: dict[str, Any]
) -> None:
    found = written(tmp_path, {"a": [1.0], "b": [2.0]})
    arrays = {name: np.asarray(array, dtype=np.float32) for name, array in inside.items()}
    save_file(arrays, tmp_path / "gradient.stage-0.safetensors")
    with pytest.raises(EvidenceError, match="other tensors than its record names"):
        dict(found.tensors())


def test_a_file_that_no_verdict_vouches_for_is_a_fault_of_its_launch(
    plan: Plan, tmp_path: Path
) -> None:
    trial = carried_out(tmp_path, plan, "baseline", unwritten("end"))
    found = read_capture(trial.records, trial.captures, "end", accepted=False)
    assert found is not None
    with pytest.raises(MeasurementError, match="no file of tensors"):
        dict(found.tensors())
