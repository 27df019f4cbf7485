from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from stages.baseline_eager import first_rung
from tests.fake_training import TENSORS, ladder_plan
from trn_validate.config import Plan
from trn_validate.damage import damage
from trn_validate.errors import MeasurementError
from trn_validate.resume import (
    give,
    halfway,
    reload_spec,
    resume_spec,
    safetensors_elements,
    save_spec,
)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return ladder_plan(tmp_path / "plan")


def checkpoint(folder: Path) -> Path:
    """A checkpoint of two shards, the second the larger."""
    made = folder / "save/dump/checkpoint/step-3"
    made.mkdir(parents=True)
    (made / ".metadata").write_bytes(b"index")
    (made / "__0_0.distcp").write_bytes(b"small")
    (made / "__1_0.distcp").write_bytes(b"larger than the other")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# What is launched


@pytest.mark.parametrize(("steps", "middle"), [(4, 2), (5, 2), (6, 3), (7, 3)])
def test_the_checkpoint_is_saved_halfway_with_steps_on_both_sides(
    tmp_path: Path, steps: int, middle: int
) -> None:
    plan = ladder_plan(tmp_path, f"paths.native.ladders.0.workload.steps={steps}")
    assert halfway(first_rung(plan)) == middle
    spec = save_spec(plan, first_rung(plan), tmp_path, tmp_path / "seed")
    assert spec.checkpoint.save_interval == middle
    assert spec.digest_steps == (middle, steps)


def test_a_resumed_run_continues_what_is_in_its_own_folder_and_exports(
    plan: Plan, tmp_path: Path
) -> None:
    spec = resume_spec(plan, first_rung(plan), "resume", tmp_path)
    assert spec.checkpoint.resume
    assert spec.checkpoint.load_path is None
    assert spec.checkpoint.export_safetensors
    assert spec.digest_steps == (0, 6)


def test_a_run_on_a_damaged_checkpoint_exports_nothing(plan: Plan, tmp_path: Path) -> None:
    spec = resume_spec(plan, first_rung(plan), "truncated", tmp_path)
    assert spec.checkpoint.resume
    assert not spec.checkpoint.export_safetensors


def test_the_export_is_loaded_from_where_the_resumed_run_puts_it(
    plan: Plan, tmp_path: Path
) -> None:
    resumed = resume_spec(plan, first_rung(plan), "resume", tmp_path)
    spec = reload_spec(plan, first_rung(plan), tmp_path)
    assert spec.checkpoint.load_path == f"{resumed.dump}/checkpoint/step-6"
    assert spec.checkpoint.load_safetensors
    assert spec.digest_steps == (0,)
    assert spec.steps == 2


# Handing a checkpoint on, and breaking a copy of it


def test_a_checkpoint_is_handed_on_whole_to_where_the_run_looks_for_its_own(
    plan: Plan, tmp_path: Path
) -> None:
    made = checkpoint(tmp_path)
    spec = resume_spec(plan, first_rung(plan), "resume", tmp_path)
    given = give(made, spec)
    assert given == tmp_path / "resume/dump/checkpoint/step-3"
    assert contents(given) == contents(made)


@pytest.mark.parametrize("how", ["truncated", "missing"])
def test_damage_hits_the_largest_shard_of_the_copy_and_leaves_the_original(
    plan: Plan, tmp_path: Path, how: str
) -> None:
    made = checkpoint(tmp_path)
    before = contents(made)
    given = give(made, resume_spec(plan, first_rung(plan), how, tmp_path))
    assert damage(given, how) == "__1_0.distcp"
    assert contents(made) == before
    after = contents(given)
    assert after["__0_0.distcp"] == before["__0_0.distcp"]
    if how == "missing":
        assert set(before) - set(after) == {"__1_0.distcp"}
    else:
        whole = before["__1_0.distcp"]
        assert after["__1_0.distcp"] == whole[: len(whole) // 2]


# The export


def safetensors(path: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def test_elements_are_counted_over_all_files(tmp_path: Path) -> None:
    names = list(TENSORS)
    safetensors(tmp_path / "a.safetensors", {name: TENSORS[name] for name in names[:2]})
    safetensors(tmp_path / "b.safetensors", {name: TENSORS[name] for name in names[2:]})
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert safetensors_elements(tmp_path) == {
        "model.embed_tokens.weight": 32,
        "model.layers.0.mlp.weight": 16,
        "model.norm.weight": 4,
        "lm_head.weight": 32,
    }


def test_a_scalar_is_one_element_and_an_empty_tensor_none(tmp_path: Path) -> None:
    safetensors(tmp_path / "a.safetensors", {"scalar": (), "empty": (0, 4)})
    assert safetensors_elements(tmp_path) == {"scalar": 1, "empty": 0}


def test_no_files_hold_no_elements(tmp_path: Path) -> None:
    assert safetensors_elements(tmp_path) == {}
    assert safetensors_elements(tmp_path / "absent") == {}


def test_a_name_that_stands_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        safetensors(tmp_path / f"{name}.safetensors", {"lm_head.weight": (2,)})
    with pytest.raises(MeasurementError, match=r"lm_head\.weight stands in two files"):
        safetensors_elements(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"1234567", b"\xff" * 16, struct.pack("<Q", 4) + b"{no}", b"PK\x03\x04" * 10]
)
def test_what_is_no_safetensors_file_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(MeasurementError, match="not a safetensors file") as caught:
        safetensors_elements(tmp_path)
    assert caught.value.where.endswith("model.safetensors")


def test_a_file_whose_data_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors(path, {"lm_head.weight": (8, 4)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(MeasurementError, match="not a safetensors file"):
        safetensors_elements(tmp_path)
