from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.builders import closing, header, run_spec, state, step
from trn_validate import records, spec
from trn_validate.base import Real, Record
from trn_validate.records import (
    Captured,
    Communication,
    Compilation,
    Failure,
    Kernels,
    Line,
    Mark,
    ProbeClosing,
    ProbeHeader,
    ProbeLine,
    Saved,
    Written,
    failure_file,
    rank_file,
)
from trn_validate.spec import (
    CheckpointChoice,
    Collective,
    CollectivesSpec,
    CompileChoice,
    DataChoice,
    Degrees,
    Groups,
    KernelUse,
    ModelChoice,
    RunSpec,
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
SAVED = Saved(step=3, elements={"norm.weight": 4, "train_state": 0})
COMMUNICATION = Communication(step=7, calls={"all_reduce": 3}, bytes={"all_reduce": 4096})
COMPILATION = Compilation(
    blocks=2, graphs=3, calls=18, compiled_calls=18, breaks=("print",), seconds=9.5
)
KERNELS = Kernels(
    provider="interpreter",
    reason="nki is not there",
    replaced={"rmsnorm": ("norm",)},
    left={"rmsnorm": ()},
    launches={"rmsnorm_forward": 6},
)
LINES: list[Written] = [
    header(),
    step(1),
    state(1),
    SAVED,
    CAPTURED,
    COMMUNICATION,
    COMPILATION,
    KERNELS,
    closing(1),
]
PROBED: list[ProbeHeader | Mark | ProbeClosing] = [
    ProbeHeader(
        rank=1,
        world_size=2,
        pid=7,
        started=1.5,
        device="cpu",
        backend="gloo",
        versions={"torch": "2.14.1"},
        hooks=(),
    ),
    Mark(operation="barrier", phase="refused", what="NotImplementedError: no", seconds=0.1),
    ProbeClosing(operations=1),
]
PAIRS = Collective(kind="all_reduce", groups=Groups(size=2, stride=1))
FAILURE = Failure(rank=1, pid=7, at=1.5, type="ValueError", message="no", traceback="...")
EXAMPLES: list[Record] = [
    Degrees(tp=2),
    ModelChoice(module="torchtitan.models.qwen3", flavor="8B"),
    DataChoice(),
    CheckpointChoice(),
    CompileChoice(backend="inductor"),
    KernelUse(name="k", override="a.k", replaces="a:A", by="a:B", launches={"k_forward": 1}),
    run_spec(),
    Groups(size=4, stride=2),
    PAIRS,
    CollectivesSpec(
        name="ranks-2",
        records="records",
        stacks="stacks",
        device="cpu",
        backend="gloo",
        operations=(PAIRS,),
        seconds=5.0,
    ),
    *LINES,
    *PROBED,
    FAILURE,
]


def test_there_is_an_example_of_every_record_here() -> None:
    kinds = {
        kind
        for kind in (vars(records) | vars(spec)).values()
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


@pytest.mark.parametrize("line", PROBED, ids=lambda line: str(line.kind))
def test_a_line_of_a_probe_is_told_by_its_kind(line: Record) -> None:
    told: TypeAdapter[Record] = TypeAdapter(ProbeLine)
    assert type(told.validate_json(line.model_dump_json())) is type(line)


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line.kind))
def test_a_line_is_told_by_its_kind(line: Written) -> None:
    assert type(LINE.validate_json(line.model_dump_json())) is type(line)


def test_a_process_is_told_from_a_later_one_that_got_its_id() -> None:
    assert header(pid=101, started=1.5).process == "101 of 1.50"
    assert header(pid=101, started=2.5).process != header(pid=101, started=1.5).process


def test_every_kind_of_line_has_a_name_of_its_own() -> None:
    kinds = [kind.model_fields["kind"].default for kind in get_args(get_args(Line)[0])]
    assert sorted(kinds) == sorted(line.kind for line in LINES)
    assert len(set(kinds)) == len(kinds) == 9


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


@pytest.mark.parametrize(
    ("name", "value"),
    [("what", "middle"), ("mode", "half"), ("stage", "0"), ("norms", {"a": "big"}), ("file", 1)],
)
def test_a_capture_of_another_kind_is_refused(name: str, value: object) -> None:
    values = json.loads(CAPTURED.model_dump_json()) | {name: value}
    with pytest.raises(ValidationError, match=name):
        LINE.validate_json(json.dumps(values))
