from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from stages import stages_of
from tests.fake_training import Rig, climbed
from tests.review.bundles import packed
from trn_validate.config import Plan
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.review.beside import APART
from trn_validate.review.cells import Table
from trn_validate.review.compare import as_markdown, compare, show_comparison
from trn_validate.review.index import _drift, write_index
from trn_validate.review.material import Material, load

EAGER, FSDP = "baseline.eager", "parallelism.fsdp"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with climbed(tmp_path_factory.mktemp("run")) as rig:
        yield rig


@pytest.fixture(scope="module")
def material(rig: Rig) -> Material:
    return load(rig.run.folder, stages_of)


def with_workload(material: Material, **changes: object) -> Material:
    """The same run by a plan whose ladders train otherwise."""
    ladders = tuple(
        ladder.model_copy(update={"workload": ladder.workload.model_copy(update=changes)})
        for ladder in material.plan.ladders
    )
    return replace(material, plan=material.plan.model_copy(update={"ladders": ladders}))


def rows(tables: tuple[Table, ...], caption: str) -> dict[str, tuple[str, ...]]:
    (found,) = (table for table in tables if table.caption.startswith(caption))
    return {row[0]: row[1:] for row in found.rows}


def test_a_run_is_nowhere_apart_from_itself(material: Material) -> None:
    found = compare([material, material])
    assert found.not_comparable == ()
    assert found.runs == (material.run, f"{material.run} (2)")
    first, second = rows(found.tables, "Loss at each step")[f"{EAGER}, 1"]
    assert second == f"{first} (+0.00e+00)"
    assert rows(found.tables, "Tokens per second")[FSDP][1].endswith("(x 1.000)")
    for caption in ("Stacks", "Plans", "Layouts"):
        shown = rows(found.tables, caption)
        assert shown
        assert {cells[-1] for cells in shown.values()} == {"no"}


def test_an_archive_stands_for_the_run_that_it_holds(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = packed(rig, tmp_path / "b.tar.gz")
    assert show_comparison([rig.run.folder, archive], stages_of, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == [rig.run.name, f"{rig.run.name} (2)"]
    assert found["not_comparable"] == []
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(EvidenceError):
        show_comparison([rig.run.folder, archive], stages_of)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": 43}, "seed: 43, not 42"),
        ({"global_batch_size": 8}, "tokens per step: 2048, not 1024"),
        ({"learning_rate": 1e-3}, "learning rate: 0.001"),
    ],
)
def test_what_makes_runs_not_comparable_is_named_and_no_number_stands_there(
    material: Material, changes: dict[str, object], reason: str
) -> None:
    found = compare([material, with_workload(material, **changes)])
    assert any(reason in line and FSDP in line for line in found.not_comparable)
    for caption in ("Loss at each step", "Gradient norm at", "Tokens per", "Peak memory"):
        shown = rows(found.tables, caption)
        assert shown
        assert {cells[1] for cells in shown.values()} == {APART}


def test_another_model_is_not_comparable_but_the_same_one_in_a_fork_is(
    material: Material,
) -> None:
    def with_model(**changes: object) -> Material:
        (ladder,) = material.plan.ladders
        shaped = {"shape": ladder.model.resolved(), **changes}
        model = ladder.model.model_copy(update=shaped)
        ladders = (ladder.model_copy(update={"model": model}),)
        return replace(material, plan=material.plan.model_copy(update={"ladders": ladders}))

    fork = compare([material, with_model(module="a_fork.models.qwen3")])
    assert fork.not_comparable == ()
    cut = compare([material, with_model(layers=1)])
    assert any("model: " in line for line in cut.not_comparable)


def test_other_rows_are_found_in_the_records_where_the_plans_are_equal(
    material: Material,
) -> None:
    launches = tuple(
        replace(one, steps=tuple(replace(s, rows="f" * 32) for s in one.steps))
        if one.name == "fsdp"
        else one
        for one in material.launches
    )
    found = compare([material, replace(material, launches=launches)])
    assert any("other rows entered forward at step 1" in line for line in found.not_comparable)
    assert rows(found.tables, "Tokens per")[FSDP][1] == APART
    assert rows(found.tables, "Tokens per")[EAGER][1] != APART


def test_another_dtype_is_shown_and_forbids_nothing(material: Material) -> None:
    found = compare([material, with_workload(material, compute_dtype="bfloat16")])
    assert found.not_comparable == ()
    name = f"{material.plan.ladders[0].name}: compute dtype"
    assert rows(found.tables, "Plans")[name] == ("float32", "bfloat16", "yes")


def test_markdown_json_and_the_page_hold_the_same_tables(
    rig: Rig, material: Material, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, page = [rig.run.folder] * 3, tmp_path / "compared.html"
    assert show_comparison(folders, stages_of, html=page, as_json=True) == 0
    data = json.loads(capsys.readouterr().out)
    captions = [table["caption"] for table in data["tables"]]
    text = as_markdown(compare([material] * 3))
    assert "Loss at each step" in captions
    assert all(f"## {caption}" in text for caption in captions)
    shown = unescape(page.read_text(encoding="utf-8"))
    assert all(f"<h2>{caption}</h2>" in shown for caption in captions)
    widths = {line.count("|") for line in text.split("## Runs")[1].split("##")[0].splitlines()}
    assert widths == {0, 5}


def test_one_run_is_no_comparison(rig: Rig) -> None:
    with pytest.raises(UsageError, match="two runs or more"):
        show_comparison([rig.run.folder], stages_of)


def test_the_index_has_every_run_with_its_decision_and_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with climbed(tmp_path) as rig:
        plan: Plan = rig.plan
        second = Rig(tmp_path, plan=plan)
    second.walk()
    broken = tmp_path / "reports/cpu.native.20200101T000000Z"
    broken.mkdir()
    assert write_index(tmp_path / "reports", stages_of) == 0
    index = tmp_path / "reports/index.html"
    assert capsys.readouterr().out.splitlines()[-1] == str(index)
    text = index.read_text(encoding="utf-8")
    # One name may begin with the other.
    assert text.index(f">{second.run.name}<") < text.index(f">{rig.run.name}<")
    assert text.count("REHEARSAL: all") == 2
    assert "(+0 %)" in text
    assert "Drift of cpu, native" in text
    assert "cpu.native.20200101T000000Z: not a run folder" in text
    assert str(tmp_path) not in text


def test_an_index_of_nothing_says_so(tmp_path: Path) -> None:
    write_index(tmp_path, stages_of)
    assert "There is no run yet" in (tmp_path / "index.html").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="no such folder"):
        write_index(tmp_path / "absent", stages_of)


@pytest.mark.parametrize(
    ("now", "was", "told"),
    [
        (1.1, 1.0, "1.1 (+10 %)"),
        (0.5, 1.0, "0.5 (-50 %)"),
        (3.7, 1.0, "3.7 (x 3.7)"),
        (2.0, 1.0, "2 (x 2)"),
        (0.001, 1.0, "0.001 (x 0.001)"),
        (1.0, 0.0, "1"),
        (None, 1.0, "-"),
    ],
)
def test_drift_is_told_without_an_exponent(now: float | None, was: float | None, told: str) -> None:
    assert _drift(now, was) == told
