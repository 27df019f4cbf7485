from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.builders import closing, header, run_spec, state, step
from trn_validate import records
from trn_validate.records import (
    AXES,
    Captured,
    CheckpointChoice,
    Communication,
    Compilation,
    CompileChoice,
    DataChoice,
    Degrees,
    Failure,
    Line,
    ModelChoice,
    Real,
    Record,
    RunSpec,
    Step,
    Written,
    captures_folder,
    failure_file,
    rank_file,
    revive,
)

LINE: TypeAdapter[Written] = TypeAdapter(Line)
REAL: TypeAdapter[float] = TypeAdapter(Real)
CAPTURED = Captured(
    what="gradient",
    mode="full",
    stage=1,
    file="gradient.stage-1.safetensors",
    norms={"norm.weight": 0.5, "lm_head.weight": math.inf},
    digests={"norm.weight": "ab" * 32, "lm_head.weight": "cd" * 32},
    absent=("unused.weight",),
    seconds=0.1,
)
COMMUNICATION = Communication(step=7, calls={"all_reduce": 3}, bytes={"all_reduce": 4096})
COMPILATION = Compilation(
    blocks=2, graphs=3, calls=18, compiled_calls=18, breaks=("print",), seconds=9.5
)
LINES: list[Written] = [
    header(),
    step(1),
    state(1),
    CAPTURED,
    COMMUNICATION,
    COMPILATION,
    closing(1),
]
FAILURE = Failure(rank=1, pid=7, at=1.5, type="ValueError", message="no", traceback="...")
EXAMPLES: list[Record] = [
    Degrees(tp=2),
    ModelChoice(module="torchtitan.models.qwen3", flavor="8B"),
    DataChoice(),
    CheckpointChoice(),
    CompileChoice(backend="inductor"),
    run_spec(),
    *LINES,
    FAILURE,
]


def test_there_is_an_example_of_every_record_here() -> None:
    kinds = {
        kind
        for kind in vars(records).values()
        if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
    }
    assert {type(example) for example in EXAMPLES} == kinds


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_record_survives_its_text(example: Record) -> None:
    assert type(example).model_validate_json(example.model_dump_json()) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_record_refuses_a_key_that_it_does_not_know(example: Record) -> None:
    values = json.loads(example.model_dump_json()) | {"unknown": 1}
    with pytest.raises(ValidationError, match="unknown"):
        type(example).model_validate_json(json.dumps(values))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_record_cannot_be_changed(example: Record) -> None:
    name = next(iter(type(example).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(example, name, getattr(example, name))


@pytest.mark.parametrize(
    ("name", "value"), [("steps", "6"), ("steps", 6.5), ("steps", True), ("sequence_parallel", 1)]
)
def test_a_record_converts_no_value(name: str, value: object) -> None:
    values = json.loads(run_spec().model_dump_json()) | {name: value}
    with pytest.raises(ValidationError, match=name):
        RunSpec.model_validate_json(json.dumps(values))


def test_the_world_is_the_product_of_all_degrees_but_ep() -> None:
    degrees = Degrees(dp_replicate=2, dp_shard=3, tp=5, cp=7, pp=11, ep=13)
    assert degrees.world_size == 2 * 3 * 5 * 7 * 11
    assert degrees.data_parallel == 2 * 3


def test_every_axis_is_a_degree_and_every_degree_an_axis() -> None:
    assert tuple(Degrees.model_fields) == AXES
    assert all(getattr(Degrees(), axis) == 1 for axis in AXES)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_a_degree_is_a_whole_number_from_one(axis: str, value: object) -> None:
    with pytest.raises(ValidationError, match=axis):
        Degrees.model_validate({axis: value})


def test_a_layout_is_named_by_the_degrees_that_it_uses() -> None:
    assert str(Degrees()) == "one process"
    assert str(Degrees(tp=4, dp_shard=16)) == "dp_shard16 x tp4"


@pytest.mark.parametrize(
    ("local", "degrees", "expected"),
    [(4, {}, 1), (1, {}, 4), (1, {"dp_shard": 2}, 2), (2, {"dp_replicate": 2, "tp": 8}, 1)],
)
def test_accumulation_makes_up_for_a_smaller_local_batch(
    local: int, degrees: dict[str, int], expected: int
) -> None:
    spec = run_spec(local_batch_size=local, degrees=Degrees(**degrees))
    assert spec.accumulation == expected
    assert spec.accumulation * local * spec.degrees.data_parallel == spec.global_batch_size


def test_tokens_per_step_do_not_depend_on_the_layout() -> None:
    assert run_spec().tokens_per_step == 1024
    wide = run_spec(local_batch_size=1, degrees=Degrees(dp_shard=4, tp=2))
    assert wide.tokens_per_step == 1024


@pytest.mark.parametrize(
    ("text", "value"), [("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf)]
)
def test_the_three_texts_of_numbers_that_are_not_finite_are_read_as_numbers(
    text: str, value: float
) -> None:
    found = REAL.validate_json(json.dumps(text))
    assert isinstance(found, float)
    assert str(found) == str(value)
    assert step(1, loss=value).model_dump_json().count(f'"{text}"') == 1


@pytest.mark.parametrize("value", ["nan", "inf", "1.0", "", None, 5, [1]])
def test_any_other_value_is_left_as_it_is(value: object) -> None:
    assert revive(value) == value


@pytest.mark.parametrize("text", ["nan", "inf", "1.0", ""])
def test_any_other_text_is_no_number(text: str) -> None:
    values = json.loads(step(1).model_dump_json()) | {"loss": text}
    with pytest.raises(ValidationError, match="loss"):
        LINE.validate_json(json.dumps(values))


@pytest.mark.parametrize("value", [0.1, 1e-300, 5e-324, 1.7976931348623157e308, -0.0])
def test_a_number_keeps_every_bit_in_its_text(value: float) -> None:
    again = LINE.validate_json(step(1, loss=value).model_dump_json())
    assert isinstance(again, Step)
    assert again.loss.hex() == value.hex()


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line.kind))
def test_a_line_is_told_by_its_kind(line: Written) -> None:
    assert type(LINE.validate_json(line.model_dump_json())) is type(line)


def test_every_kind_of_line_has_a_name_of_its_own() -> None:
    kinds = [kind.model_fields["kind"].default for kind in get_args(get_args(Line)[0])]
    assert sorted(kinds) == sorted(line.kind for line in LINES)
    assert len(set(kinds)) == len(kinds) == 7


@pytest.mark.parametrize("values", [{}, {"kind": "other"}, {"kind": None}, []])
def test_a_line_of_no_known_kind_is_refused(values: Any) -> None:
    with pytest.raises(ValidationError):
        LINE.validate_json(json.dumps(values))


def test_a_rank_writes_to_files_of_its_own() -> None:
    folder = Path("records")
    names = {rank_file(folder, 0), rank_file(folder, 1), failure_file(folder, 0)}
    assert names == {
        folder / "rank-0.jsonl",
        folder / "rank-1.jsonl",
        folder / "rank-0.failure.json",
    }


def test_tensors_are_kept_beside_the_records_and_not_among_them() -> None:
    spec = run_spec(records="attempt/fsdp/records")
    assert captures_folder(spec) == Path("attempt/fsdp/captures")


def test_a_launch_keeps_moves_and_counts_nothing_unless_it_is_told_to() -> None:
    spec = run_spec()
    assert (spec.capture, spec.keep_start, spec.perturb) == ("none", False, 0)
    assert not spec.count_communication
    assert spec.compiled is None


@pytest.mark.parametrize("value", [-1, True, 1.5, "1"])
def test_a_seed_of_signs_is_a_whole_number_from_zero(value: object) -> None:
    with pytest.raises(ValidationError, match="perturb"):
        run_spec(perturb=value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("what", "middle"), ("mode", "half"), ("stage", "0"), ("norms", {"a": "big"}), ("file", 1)],
)
def test_a_capture_of_another_kind_is_refused(name: str, value: object) -> None:
    values = json.loads(CAPTURED.model_dump_json()) | {name: value}
    with pytest.raises(ValidationError, match=name):
        LINE.validate_json(json.dumps(values))


def test_the_schema_of_a_number_allows_the_three_texts() -> None:
    schema = REAL.json_schema(mode="serialization")
    assert schema["anyOf"] == [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]
