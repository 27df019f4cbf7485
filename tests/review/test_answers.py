from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import ROOT, check, host, layout, load_plan, verdict
from trn_validate.errors import UsageError
from trn_validate.review.answers import answers, show_answers
from trn_validate.review.questions import (
    COLLECTIVES,
    IMPORTS,
    NUM_CORES,
    OPS,
    QUESTIONS,
    Material,
    probed,
    real,
)
from trn_validate.run import Run
from trn_validate.session import plan_text
from trn_validate.store import Store
from trn_validate.vendor_record import LoggedStep, VendorRecord
from trn_validate.verdict import Verdict

FSDP = "parallelism.fsdp"
BLOCKING = "NEURON_LAUNCH_BLOCKING"
FALLBACK = "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"
FLAVORS = "flavors of torchtitan_neuron.models.qwen3"


def imports(**facts: str) -> Verdict:
    return of(IMPORTS, facts=facts, versions={"torch-neuronx": "2.14.3.0.1"}, layout=None)


def of(stage: str, **changes: Any) -> Verdict:
    return verdict(stage=stage, **changes)


def vendor(*losses: float, **changes: Any) -> VendorRecord:
    values: dict[str, Any] = {
        "fork": "0.2.2+neuron.1",
        "argv": ("bash", "run_train.sh", "--training.steps", "5"),
        "variables": {},
        "wanted": 5,
        "steps": tuple(
            LoggedStep(step=i + 1, loss=loss, grad_norm=1.0) for i, loss in enumerate(losses)
        ),
        "cause": "completed",
        "exit_status": 0,
        "seconds": 60.0,
        "what": "",
        "log": "vendor.run/1/run/output.log",
        "host": host(),
        "started_at": "2026-01-01T00:00:00Z",
    }
    return VendorRecord(**(values | changes))


def material(*verdicts: Verdict, record: VendorRecord | None = None) -> Material:
    return real({one.stage: one for one in verdicts}, record)


def named(name: str, **changes: Any) -> dict[str, Any]:
    return {"expects": (name,), "checks": (check(name=name, **changes),)}


ANSWERED: list[tuple[str, Material, str]] = [
    (
        "num_cores",
        material(imports(**{NUM_CORES: "unset"}), of(FSDP, layout=layout(processes=4))),
        "unset works: parallelism.fsdp passed with 4 ranks",
    ),
    (
        "num_cores",
        material(imports(**{NUM_CORES: "64"}), of(FSDP)),
        "set to 64 works: parallelism.fsdp passed with 2 ranks",
    ),
    (
        "version",
        material(imports(**{"torch_neuronx.__version__": "0.1.0"})),
        "0.1.0 (environment.imports, fact 'torch_neuronx.__version__')",
    ),
    (
        "launch_blocking",
        material(imports(**{f"default {BLOCKING}": "1"})),
        f"1 (environment.imports, fact 'default {BLOCKING}')",
    ),
    (
        "eager_fallback",
        material(imports(**{f"default {FALLBACK}": "unset"})),
        f"unset (environment.imports, fact 'default {FALLBACK}')",
    ),
    (
        "int64",
        material(of(OPS, **named("round trip of int64", measured=1))),
        "round trip of int64: 1 <= 1.0 holds (environment.ops)",
    ),
    (
        "int64",
        material(of(COLLECTIVES, facts={"all_reduce int64": "refused: NCC_EVRF035"})),
        "all_reduce int64: refused: NCC_EVRF035 (environment.collectives)",
    ),
    (
        "send_recv",
        material(of(COLLECTIVES, **named("send and recv", measured=2.0))),
        "send and recv: 2.0 <= 1.0 does not hold (environment.collectives)",
    ),
    (
        "uneven_all_to_all",
        material(of(COLLECTIVES, facts={"all_to_all uneven": "absent"})),
        "all_to_all uneven: absent (environment.collectives)",
    ),
    (
        "fallback_ops",
        material(imports(**{"attributes of torch_neuronx": "nki_op, get_fallback_ops"})),
        "yes, in torch-neuronx 2.14.3.0.1 (environment.imports)",
    ),
    (
        "fallback_ops",
        material(imports(**{"attributes of torch_neuronx": "nki_op"})),
        "no, in torch-neuronx 2.14.3.0.1 (environment.imports)",
    ),
    (
        "run_train",
        material(record=vendor(8.0)),
        "it takes what it was given: bash run_train.sh --training.steps 5 (the vendor's own run)",
    ),
    (
        "run_train",
        material(record=vendor(what="exit status 2: unrecognized options")),
        "not as it was given: exit status 2: unrecognized options; "
        "read vendor.run/1/run/output.log (the vendor's own run)",
    ),
    (
        "moe_flavors",
        material(imports(**{FLAVORS: "0.6B, 30B-A3B, debugmodel_moe"})),
        "torchtitan_neuron.models.qwen3: 30B-A3B, debugmodel_moe, "
        "of 0.6B, 30B-A3B, debugmodel_moe (environment.imports)",
    ),
    (
        "moe_flavors",
        material(imports(**{FLAVORS: "0.6B"})),
        "torchtitan_neuron.models.qwen3: none, of 0.6B (environment.imports)",
    ),
]

OPEN: list[tuple[str, Material]] = [
    ("num_cores", material(imports(**{NUM_CORES: "unset"}))),
    ("num_cores", material(of(FSDP))),
    (
        "num_cores",
        material(imports(**{NUM_CORES: "unset"}), of(FSDP, checks=(check(measured=2.0),))),
    ),
    ("num_cores", material(imports(**{NUM_CORES: "unset"}), of(FSDP, device="cpu"))),
    (
        "num_cores",
        material(imports(**{NUM_CORES: "unset"}), of(FSDP, layout=layout(processes=1))),
    ),
    ("version", material(imports(lineage="legacy XLA"))),
    ("launch_blocking", material(imports(**{f"default {FALLBACK}": "1"}))),
    ("eager_fallback", material(imports(**{f"default {BLOCKING}": "1"}))),
    ("int64", material(of(OPS, **named("round trip of int32")))),
    ("send_recv", material(of(COLLECTIVES, **named("all_reduce")))),
    ("send_recv", material(of(OPS, **named("send and recv")))),
    ("uneven_all_to_all", material(of(COLLECTIVES, **named("all_to_all even")))),
    ("fallback_ops", material(imports(lineage="native"))),
    ("run_train", material(imports(lineage="native"))),
    ("moe_flavors", material(imports(**{"flavors of torchtitan.models.qwen3": "30B-A3B"}))),
]


@pytest.mark.parametrize(("name", "found", "answer"), ANSWERED)
def test_a_verdict_that_has_the_field_answers(name: str, found: Material, answer: str) -> None:
    told = {question.id: text for question, text in answers(found)}
    assert told[name] == answer


@pytest.mark.parametrize(("name", "found"), OPEN)
def test_a_verdict_that_lacks_it_leaves_the_question_open(name: str, found: Material) -> None:
    told = {question.id: text for question, text in answers(found)}
    assert told[name] is None


def test_every_question_has_a_verdict_that_answers_it_and_one_that_does_not() -> None:
    ids = [question.id for question in QUESTIONS]
    assert len(set(ids)) == len(ids) == 10
    assert {name for name, _, _ in ANSWERED} == set(ids)
    assert {name for name, _ in OPEN} == set(ids)


def test_a_table_of_capabilities_answers_by_operation_and_not_by_what_was_not_asked() -> None:
    rows = [
        ("send_recv float32", 2, "right", ""),
        ("send_recv int64", 2, "refused", "rank 1: NCC_EVRF035"),
        ("send_recv bfloat16", 4, "unasked", ""),
        ("broadcast float32", 2, "right", ""),
    ]
    table = SimpleNamespace(
        capabilities=[
            SimpleNamespace(operation=name, processes=n, state=state, detail=detail)
            for name, n, state, detail in rows
        ]
    )
    assert list(probed(table, re.compile("send"))) == [
        "send_recv float32 on 2: right",
        "send_recv int64 on 2: refused (rank 1: NCC_EVRF035)",
    ]
    assert list(probed(None, re.compile("send"))) == []


def test_the_page_for_the_first_run_asks_the_same_questions() -> None:
    page = (ROOT / "docs/first-run-on-trn2.md").read_text("utf-8")
    rows = [row.split(" | ")[0] for row in page.splitlines() if row.startswith("| ")]
    asked = {row.strip("| ").replace("`", "") for row in rows}
    assert {question.asks for question in QUESTIONS} <= asked


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"root": "/moved"},
        {"target": "rehearsal"},
        {"target": "cpu"},
        {"trn2_functions": 0},
    ],
)
def test_what_no_trn2_said_answers_nothing(elsewhere: dict[str, Any]) -> None:
    told = imports(**{"torch_neuronx.__version__": "0.1.0"}).model_copy(
        update={"host": host(**elsewhere)}
    )
    assert [answer for _, answer in answers(material(told)) if answer] == []


def test_a_record_of_a_rehearsal_and_a_verdict_under_hooks_answer_nothing() -> None:
    record = vendor(8.0, host=host(target="rehearsal"))
    hooked = of(OPS, **named("int64"), hooks=("tests.defects:seed",))
    found = material(hooked, record=record)
    assert [answer for _, answer in answers(found) if answer] == []


@pytest.fixture
def run(tmp_path: Path) -> Run:
    plan = load_plan(tmp_path)
    return Store(tmp_path / "reports").create(plan.target, plan.path, plan_text(plan))


def test_without_a_run_every_question_is_open_and_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_answers(None, reports=tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "There is no run yet, so nothing was asked."
    for question in QUESTIONS:
        place = lines.index(question.asks)
        assert lines[place + 1] == f"  not asked yet: needs {question.needs}"
    assert f"0 of {len(QUESTIONS)} questions answered" in lines
    assert any("v0.2.2" not in line and "scripts/neuron_stack.py:" in line for line in lines)


def test_the_newest_run_is_read_or_the_one_that_is_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = run.new_attempt(IMPORTS)
    told = imports(**{"torch_neuronx.__version__": "0.1.0"})
    run.write(told.model_copy(update={"run": run.name}), attempt)
    reports = tmp_path / "reports"
    for name in (None, run.name, str(run.folder)):
        assert show_answers(name, reports=reports, as_json=True) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["run"] == run.name
        found = {q["id"]: q["answer"] for q in shown["questions"]}
        assert str(found["version"]).startswith("0.1.0")
        assert found["int64"] is None
        assert shown["guesses"]
    with pytest.raises(UsageError, match="no such run"):
        show_answers("cpu.native.20200101T000000Z", reports=reports)


def test_a_run_of_a_rehearsal_says_that_nothing_was_asked(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_answers(None, reports=tmp_path / "reports")
    assert f"Run {run.name}: nothing in it was said by a Trn2" in capsys.readouterr().out
