from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scripts.synthetic import write
from stages import stages_of
from tests.builders import check
from tests.fake_training import Rig, altered, climbed, within
from tests.review.test_answers import vendor
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.gate import FAILED
from trn_validate.records import Step
from trn_validate.review.documents import write_documents
from trn_validate.review.figures import read_launch
from trn_validate.review.margins import used
from trn_validate.review.material import Material, load
from trn_validate.review.page import page

SECTIONS = (
    "What it proves",
    "What it does not prove",
    "The stack",
    "The gate",
    "Checks",
    "The ladder",
    "Plots",
    "Kernels",
    "Compilation",
    "What failed, and what to do next",
    "Rerun and verify",
    "The vendor's own run",
)
"""In the order of the page."""

PLOTS = (
    "Loss over the baseline",
    "Deviation at each step",
    "Gradient deviation per parameter",
    "Step time by phase",
    "Memory per rank",
    "Margin of every check",
)
VOID = {"meta", "link", "br", "img", "input", "wbr"}
TP = "parallelism.tp"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with climbed(tmp_path_factory.mktemp("run")) as rig:
        yield rig


@pytest.fixture(scope="module")
def material(rig: Rig) -> Material:
    return load(rig.run.folder, stages_of)


@pytest.fixture(scope="module")
def text(material: Material) -> str:
    return page(material)


class _Tree(HTMLParser):
    """Fails where an element is closed that is not open, or an id is given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.heads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag == "th":
            assert values.get("scope") in ("col", "row")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h2", "h3"):
            self.heads.append(data)


def tree(text: str) -> _Tree:
    found = _Tree()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


def test_the_same_folder_gives_the_same_page_wherever_it_is(
    rig: Rig, text: str, tmp_path: Path
) -> None:
    moved = tmp_path / "unpacked"
    shutil.copytree(rig.run.folder, moved)
    assert page(load(moved, stages_of)) == text
    assert str(rig.run.folder) not in text


def test_a_page_is_whole_and_its_links_lead_somewhere(text: str) -> None:
    found = tree(text)
    assert len(found.ids) == len(set(found.ids))
    inner = [link[1:] for link in found.links if link.startswith("#")]
    assert inner
    assert set(inner) <= set(found.ids)
    assert [link for link in found.links if not link.startswith(("#", "data:,"))] == []
    assert "<script" not in text


def test_a_page_has_every_section_in_order(text: str) -> None:
    heads = tree(text).heads
    assert [head for head in heads if head in SECTIONS] == list(SECTIONS)
    assert [head for head in heads if head in PLOTS] == list(PLOTS)


def test_a_rehearsal_says_so_first_and_last(text: str) -> None:
    words = re.sub(r"<[^>]+>", " ", text.split("<body>")[1]).split()
    assert words[0] == "REHEARSAL:"
    assert "REHEARSAL" in text.split("<footer>")[1]


def test_every_check_and_every_plot_is_there(material: Material, text: str) -> None:
    for verdict in material.verdicts:
        assert f'id="{verdict.stage}"' in text
    checks = [one for verdict in material.verdicts for one in verdict.checks]
    assert f"{len(checks)} of {len(checks)} checks hold" in text
    assert "No data: the folder holds nothing" not in text
    assert text.count('<svg class="plot"') >= len(PLOTS)


def test_sections_without_data_say_so(material: Material) -> None:
    bare = replace(material, standings=(), launches=(), distances=(), environment={})
    text = page(bare)
    tree(text)
    assert text.count("No data: the folder holds nothing") == len(PLOTS)
    for what in ("no stage has named a version", "the plan has no stage", "no stage has trained"):
        assert f"No data: {what}" in text
    assert "Nothing: no stage has passed" in text
    for what in ("has checked no operator", "no run has trained", "no launch was compiled"):
        assert what in text


def test_what_a_check_says_is_text_and_never_markup(material: Material) -> None:
    first = material.standings[0]
    assert first.verdict is not None
    bad = check(name="<script>alert(1)</script>", detail='"><img src=x onerror=y>', measured=9.0)
    verdict = first.verdict.model_copy(update={"checks": (bad,)})
    spoilt = replace(first, verdict=verdict, opens=False)
    text = page(replace(material, standings=(spoilt, *material.standings[1:])))
    tree(text)
    assert "<script>" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_failed_run_says_what_failed_and_claims_nothing_behind_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, within("tp", altered(Step, step=4, loss=lambda old: old + 1e-3)))
    assert rig.walk() == FAILED
    text = page(load(rig.run.folder, stages_of))
    tree(text)
    assert f"failed at {TP}" in text
    assert '<div class="decision bad"' in text
    assert text.count('<tr class="bad">') >= 1
    assert f"What {TP} asks" in text
    assert "Compiled without breaks" not in text
    assert "bad-mark" in text.split("Margin of every check")[-1]


def test_a_stage_behind_a_replaced_verdict_is_stale_on_the_page(tmp_path: Path) -> None:
    with climbed(tmp_path) as rig:
        folder = tmp_path / "copy"
        shutil.copytree(rig.run.folder, folder)
    path = folder / "baseline.eager.json"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    text = page(load(folder, stages_of))
    assert "stale: baseline.checkpoint (changed: verdict of baseline.eager)" in text


def test_a_record_that_cannot_be_read_is_named_and_the_rest_is_shown(
    rig: Rig, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(rig.run.folder, folder)
    (record_file,) = (folder / "parallelism.fsdp/1/fsdp/records").glob("rank-0.jsonl")
    record_file.write_text("no record\n", encoding="utf-8")
    found = load(folder, stages_of)
    assert len(found.unread) == 1
    text = page(found)
    assert "What could not be read" in text
    assert "parallelism.fsdp/1/fsdp/records/rank-0.jsonl" in text
    assert str(tmp_path) not in text


def test_a_stage_in_the_strip_of_the_gate_breaks_at_its_dot_alone(text: str) -> None:
    assert '<a href="#parallelism.tp">parallelism.<wbr>tp</a>' in text


def test_the_vendors_own_run_is_shown_beside_the_gate(material: Material) -> None:
    text = page(replace(material, vendor=vendor(7.5)))
    assert "Outside the gate" in text
    assert "torchtitan-neuron" in text


def test_the_page_is_written_beside_the_report(rig: Rig, text: str) -> None:
    write_documents(rig.run, rig.plan, rig.gate.standings(), stages_of)
    assert (rig.run.folder / "report.html").read_text(encoding="utf-8") == text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run folder"):
        load(tmp_path, stages_of)
    with pytest.raises(UsageError, match="no such folder"):
        load(tmp_path / "absent", stages_of)
    (tmp_path / "plan.yaml").write_text("target: cpu\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match="not a plan of this version"):
        load(tmp_path, stages_of)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"measured": 0.25, "limit": 0.5}, 0.5),
        ({"measured": 4, "comparator": ">=", "limit": 1}, 0.25),
        ({"measured": 0.0, "comparator": ">=", "limit": 1.0}, float("inf")),
        ({"measured": 0.0, "limit": 0.0}, None),
        ({"measured": 1, "comparator": "==", "limit": 1}, None),
        ({"measured": "cpu", "comparator": "==", "limit": "cpu"}, None),
    ],
)
def test_the_part_of_a_limit_that_a_check_uses(
    values: dict[str, object], part: float | None
) -> None:
    assert used(check(**values)) == part


def test_many_ranks_are_drawn_without_growing_the_page(material: Material, tmp_path: Path) -> None:
    write(tmp_path, 64, 20)
    many = read_launch(tmp_path, TP, 1, "many")
    assert many is not None
    assert [rank.rank for rank in many.ranks] == list(range(64))
    assert many.slowest is not None
    assert many.slowest.seconds["total"] == 0.7
    grown = page(replace(material, launches=(*material.launches, many)))
    assert "many" in grown
    assert len(grown) - len(page(material)) < 5_000
