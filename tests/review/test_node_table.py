"""What the pages say of a run over several nodes, and that they say nothing of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stages import stages_of
from tests.fake_training import Rig, climbed
from trn_validate.parts import Seat
from trn_validate.review.claims import proven, unproven
from trn_validate.review.compare import compare
from trn_validate.review.index import _groups
from trn_validate.review.material import Material, load
from trn_validate.review.node_table import node_table
from trn_validate.review.page import page
from trn_validate.review.report import render

FSDP = "parallelism.fsdp"
SEATS = (
    Seat(rank=0, node="node-1", core="0-3", peak_memory_bytes=2**30, step_seconds=0.5),
    Seat(rank=1, node="node-1", core="0-3", peak_memory_bytes=2**31, step_seconds=0.5),
    Seat(rank=2, node="node-2", core="0", peak_memory_bytes=2**29, step_seconds=0.5),
    Seat(rank=3, node="node-2", core="1", peak_memory_bytes=2**28, step_seconds=1.25),
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with climbed(tmp_path_factory.mktemp("run")) as rig:
        yield rig


@pytest.fixture(scope="module")
def one(rig: Rig) -> Material:
    return load(rig.run.folder, stages_of)


@pytest.fixture(scope="module")
def two(one: Material) -> Material:
    """The same run, as if its plan were over two nodes and one rung had crossed them."""
    standings = []
    for standing in one.standings:
        verdict = standing.verdict
        if standing.stage.id == FSDP and verdict is not None and verdict.layout is not None:
            layout = verdict.layout.model_copy(update={"seats": SEATS})
            standing = replace(standing, verdict=verdict.model_copy(update={"layout": layout}))
        standings.append(standing)
    plan = one.plan.model_copy(update={"nodes": 2})
    return replace(one, run="cpu.native.2nodes.x", plan=plan, standings=tuple(standings))


def test_a_node_has_its_ranks_its_memory_and_its_factor(two: Material) -> None:
    table = node_table(two.verdicts)
    assert table is not None
    assert table.rows == (
        (FSDP, "node-1", "0, 1", "0-3", "2.00", "0.500", "1.00"),
        (FSDP, "node-2", "2, 3", "0, 1", "0.50", "1.250", "2.50"),
    )


def test_a_run_on_one_machine_has_no_word_of_nodes(one: Material) -> None:
    assert node_table(one.verdicts) is None
    assert "node-" not in page(one)
    assert "## Nodes" not in render(one.run, one.plan, one.standings)
    assert "One node. Nothing was asked between machines." in unproven(one)


def test_both_reports_show_the_nodes_and_how_many_they_are(two: Material) -> None:
    text = render(two.run, two.plan, two.standings)
    assert "path native, over 2 nodes." in text
    assert f"| {FSDP} | node-2 | 2, 3 |" in text.split("## Nodes")[1].split("## ")[0]
    shown = page(two)
    assert "path native, over 2 nodes" in shown
    assert "Nodes of each launch over several" in shown


def test_what_is_claimed_is_bounded_by_the_nodes_that_were_asked(two: Material) -> None:
    assert not any("nodes" in line for line in proven(two))
    assert any(line.startswith("More than 2 nodes") for line in unproven(two))
    first = two.standings[0]
    stage = replace(first.stage, id="environment.nodes")  # type: ignore[type-var]
    verdict = first.verdict.model_copy(update={"stage": stage.id}) if first.verdict else None
    asked = replace(two, standings=(replace(first, stage=stage, verdict=verdict),))
    assert proven(asked) == ("2 nodes are alike, see one folder, and reach each other.",)


def test_runs_over_other_nodes_stand_beside_each_other_and_apart_in_the_index(
    rig: Rig, one: Material, two: Material
) -> None:
    found = compare([one, two])
    assert found.not_comparable == ()
    shown = {row[0]: row[1:] for table in found.tables for row in table.rows}
    assert shown["nodes"] == ("1", "2")
    layouts = next(table for table in found.tables if table.caption == "Layouts")
    (cells,) = (row[1:] for row in layouts.rows if row[0] == FSDP)
    assert ["over 2 nodes" in cell for cell in cells] == [False, True, False]
    titles = [group.title for group in _groups(rig.store.root, [one, two])]
    assert titles == ["cpu, native", "cpu, native, 2 nodes"]
