from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from stages import stages_of
from tests.builders import check, layout
from tests.fake_training import (
    Rig,
    altered,
    climbed,
    ends,
    ladder_plan,
    within,
)
from tests.review.test_summary import none_yet, standing
from trn_validate.config import Plan
from trn_validate.gate import FAILED, PASSED, Standing
from trn_validate.launch import Cause
from trn_validate.records import Step
from trn_validate.review.documents import write_documents
from trn_validate.review.report import NOT_VALIDATED, render
from trn_validate.spec import AXES, Degrees

SECTIONS = [
    "## Stack",
    "## Stages",
    "## Ladder",
    "## Cost",
    "## What failed",
    "## Checks",
    "## What was not validated",
]
EAGER, FSDP, TP = "baseline.eager", "parallelism.fsdp", "parallelism.tp"
COMPILE, NKI = "kernels.compile", "kernels.nki"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with climbed(tmp_path_factory.mktemp("run")) as rig:
        yield rig


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_plan(tmp_path_factory.mktemp("plan"))


def report(rig: Rig) -> str:
    return render(rig.run.name, rig.plan, rig.gate.standings())


def section(text: str, name: str) -> list[str]:
    """Lines of a section, without its heading and the empty ones."""
    body = text.split(f"## {name}\n")[1].split("\n## ")[0]
    return [line for line in body.splitlines() if line]


def table(lines: list[str]) -> list[dict[str, str]]:
    """Rows of the first table, by column."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("|")
    ]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def ladder_rows(standings: list[Standing], plan: Plan) -> list[dict[str, str]]:
    return table(section(render("run", plan, standings), "Ladder"))


def test_the_first_line_says_rehearsal_and_the_outcome(rig: Rig) -> None:
    first = report(rig).splitlines()[0]
    number = len(rig.outcomes())
    assert number == 9
    assert first == f"**REHEARSAL: all {number} stages passed (not evidence: the target is cpu)**"


def test_the_run_is_named(rig: Rig) -> None:
    assert f"Run `{rig.run.name}`, target cpu, path native." in report(rig)


def test_every_section_is_there_in_its_order(rig: Rig) -> None:
    headings = [line for line in report(rig).splitlines() if line.startswith("## ")]
    assert headings == SECTIONS


def test_every_section_is_there_without_any_verdict(plan: Plan) -> None:
    text = render("run", plan, [none_yet("environment.device"), none_yet(FSDP)])
    assert [line for line in text.splitlines() if line.startswith("## ")] == SECTIONS
    assert "REHEARSAL: incomplete: environment.device has no verdict" in text.splitlines()[0]
    assert section(text, "Stack") == ["No data: environment.imports has not run."]
    assert section(text, "Ladder") == ["No data: no stage has trained yet."]
    assert section(text, "Cost") == ["No data: no stage has trained yet."]
    assert section(text, "What failed") == ["Nothing."]
    assert section(text, "Checks") == ["No data."]
    assert [row["outcome"] for row in table(section(text, "Stages"))] == ["-", "-"]


def test_the_report_is_a_function_of_the_verdicts_alone(rig: Rig) -> None:
    standings = rig.gate.standings()
    text = render(rig.run.name, rig.plan, standings)
    hidden = rig.run.folder.with_name("hidden")
    rig.run.folder.rename(hidden)
    try:
        assert render(rig.run.name, rig.plan, standings) == text
    finally:
        hidden.rename(rig.run.folder)
    assert report(rig) == text


def test_no_folder_of_this_machine_is_in_it(rig: Rig) -> None:
    assert str(rig.store.root) not in report(rig)


def test_every_stage_has_a_row_with_its_checks(rig: Rig) -> None:
    rows = table(section(report(rig), "Stages"))
    assert [row["stage"] for row in rows] == list(rig.outcomes())
    assert {row["outcome"] for row in rows} == {"passed"}
    assert {row["state"] for row in rows} == {""}
    for row in rows:
        count = len(rig.verdict(row["stage"]).checks)
        assert row["checks"] == f"{count}/{count}"


def test_the_stack_has_every_version_that_any_stage_saw(rig: Rig) -> None:
    rows = {row["package"]: row["version"] for row in table(section(report(rig), "Stack"))}
    assert rows["triton"] == "1.2.3"
    assert rows["torch"] == "2.14.1"
    assert "no sign of a Neuron device" in "\n".join(section(report(rig), "Stack"))


# The ladder


def test_the_ladder_has_a_column_for_every_degree_and_a_row_for_every_layout(rig: Rig) -> None:
    rows = table(section(report(rig), "Ladder"))
    assert [row["stage"] for row in rows] == [EAGER, "baseline.checkpoint", FSDP, TP, COMPILE, NKI]
    assert [[row[axis] for axis in AXES] for row in rows] == [
        ["1", "1", "1", "1", "1", "1"],
        ["1", "1", "1", "1", "1", "1"],
        ["1", "2", "1", "1", "1", "1"],
        ["1", "2", "2", "1", "1", "1"],
        ["1", "2", "2", "1", "1", "1"],
        ["1", "2", "2", "1", "1", "1"],
    ]
    assert [row["processes"] for row in rows] == ["1", "1", "2", "4", "4", "4"]
    assert [row["sequence parallel"] for row in rows] == ["-", "-", "-", "yes", "yes", "yes"]
    assert {row["tokens per step"] for row in rows} == {"1024"}


def test_every_axis_is_shown_where_it_is_used(plan: Plan) -> None:
    degrees = Degrees(dp_replicate=2, dp_shard=3, tp=5, cp=7, pp=11, ep=3)
    (row,) = ladder_rows([standing(FSDP, layout=layout(degrees=degrees))], plan)
    assert [row[axis] for axis in AXES] == ["2", "3", "5", "7", "11", "3"]


def test_deviations_are_shown_with_their_limits(rig: Rig) -> None:
    rows = {row["stage"]: row for row in table(section(report(rig), "Ladder"))}
    assert rows[FSDP]["loss deviation (limit)"] == "4.80e-07 (5.0e-06)"
    assert rows[FSDP]["grad norm deviation (limit)"] == "4.80e-07 (1.0e-04)"
    assert rows["baseline.checkpoint"]["loss deviation (limit)"] == "0.0 (0)"
    assert rows[FSDP]["gradient deviation (limit)"] == deviation(rig, FSDP, "gradient of step 1")


def test_what_a_layout_costs_stands_beside_its_processes(rig: Rig) -> None:
    rows = {row["stage"]: row for row in table(section(report(rig), "Cost"))}
    assert rows[FSDP]["processes"] == "2"
    assert rows[FSDP]["peak memory"] == "1.00 GiB"
    assert rows[FSDP]["tokens/s"] == "2048"
    assert rows[FSDP]["communication"] == "all_gather 4 (4.1 kB)"


def deviation(rig: Rig, stage: str, kind: str) -> str:
    """How the table shows the only check of that kind that a stage has."""
    (one,) = (c for c in rig.verdict(stage).checks if c.name.endswith(f": {kind}"))
    assert isinstance(one.measured, float)
    assert isinstance(one.limit, float)
    return f"{one.measured:.2e} ({one.limit:.1e})"


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("gradient deviation (limit)", "gradient of step 1"),
        ("parameter deviation (limit)", "parameters after the last step"),
    ],
)
def test_the_noise_of_the_control_is_not_shown_as_a_deviation_of_the_layout(
    rig: Rig, column: str, kind: str
) -> None:
    rows = {row["stage"]: row for row in table(section(report(rig), "Ladder"))}
    checks = {check.name: check for check in rig.verdict(EAGER).checks}
    noise, found = (
        checks[f"{name}{kind}"] for name in ("control: noise of the ", "accumulation: ")
    )
    assert isinstance(noise.measured, float)
    assert isinstance(found.measured, float)
    assert noise.measured > found.measured > 0
    assert rows[EAGER][column] == deviation(rig, EAGER, kind)


@pytest.mark.parametrize(
    ("measured", "text"), [(math.nan, "nan (1.0e+00)"), (math.inf, "inf (1.0e+00)")]
)
def test_a_deviation_that_is_not_a_number_is_shown_and_not_hidden_by_one_that_holds(
    plan: Plan, measured: float, text: str
) -> None:
    checks = (
        check(name="rerun: loss against the reference", measured=0.5),
        check(name="fsdp: loss against the reference", measured=measured),
    )
    (row,) = ladder_rows([standing(FSDP, checks=checks)], plan)
    assert row["loss deviation (limit)"] == text
    assert row["grad norm deviation (limit)"] == "-"


def test_a_stage_that_did_not_train_has_no_row(plan: Plan) -> None:
    rows = ladder_rows([standing("environment.device", layout=None), standing(FSDP)], plan)
    assert [row["stage"] for row in rows] == [FSDP]


def test_figures_that_were_not_taken_are_left_out(plan: Plan) -> None:
    text = render("run", plan, [standing(FSDP, measures={})])
    (row,) = table(section(text, "Cost"))
    assert (row["peak memory"], row["tokens/s"], row["step s"]) == ("-", "-", "-")


# Checks and failures


def test_every_check_is_shown_with_value_comparator_limit_and_unit(rig: Rig) -> None:
    text = "\n".join(section(report(rig), "Checks"))
    for stage in rig.outcomes():
        assert f"### {stage}" in text
        for one in rig.verdict(stage).checks:
            assert f"| {one.name} |" in text
    assert "| fsdp: tokens per step | 1024 | `==` | 1024 | tokens | yes | all 6 steps |" in text


def test_a_check_that_says_no_stands_out_and_what_failed_says_how_to_rerun(rig: Rig) -> None:
    rig.spoil(within("tp", altered(Step, step=4, loss=lambda old: old + 1e-3)))
    assert rig.walk(only=TP) == FAILED
    rig.spoil()
    text = report(rig)
    assert text.startswith(f"**REHEARSAL: failed at {TP}")
    failures = section(text, "What failed")
    assert (failures[0], failures[-1]) == ("```", "```")
    assert failures[1].startswith(f"FAILED  {TP}")
    assert failures[-2].startswith("  rerun   python pipeline.py run")
    assert text.count("**no**") == 1
    (row,) = (row for row in table(section(text, "Stages")) if row["stage"] == TP)
    assert (row["outcome"], row["checks"]) == ("failed", "18/19")
    assert rig.walk(only=TP) == PASSED


def test_a_crash_shows_the_last_lines_and_what_was_blocked(rig: Rig) -> None:
    rig.spoil(within("fsdp", ends(Cause.CRASH, log="a | b\n``` no fence\n")))
    rig.walk(start=FSDP)
    rig.spoil()
    text = report(rig)
    failures = section(text, "What failed")
    assert "          | a | b" in failures
    assert failures.count("```") == 2
    outcomes = {row["stage"]: row["outcome"] for row in table(section(text, "Stages"))}
    assert (outcomes[FSDP], outcomes[TP]) == ("error", "blocked")
    assert rig.walk() == PASSED


def test_a_stale_stage_says_why_in_its_row(rig: Rig) -> None:
    rig.walk(only=FSDP)
    rows = {row["stage"]: row for row in table(section(report(rig), "Stages"))}
    assert rows[TP]["state"] == f"stale: changed: verdict of {FSDP}"
    assert rig.walk() == PASSED


def test_a_cell_breaks_no_table(plan: Plan) -> None:
    awkward = check(name="a | b", detail="one\ntwo | three")
    text = render("run", plan, [standing(FSDP, checks=(awkward,), expects=("a | b",))])
    (row,) = (line for line in text.splitlines() if line.startswith("| a "))
    assert row == "| a \\| b | 0.5 | `<=` | 1 |  | yes | one two \\| three |"


def test_what_this_version_does_not_ask_is_said(rig: Rig) -> None:
    lines = section(report(rig), "What was not validated")
    assert lines == [f"- {item}" for item in NOT_VALIDATED]


def test_the_report_is_written_into_the_run_folder(rig: Rig) -> None:
    path = write_documents(rig.run, rig.plan, rig.gate.standings(), stages_of)
    assert path == rig.run.folder / "report.md"
    assert path.read_text() == report(rig)
    assert path.read_text().isascii()


def test_a_verdict_of_another_stage_changes_nothing_that_it_does_not_concern(plan: Plan) -> None:
    one = standing(FSDP)
    both = [one, standing(TP, layout=None, versions={})]
    first, second = (render("run", plan, standings) for standings in ([one], both))
    assert section(first, "Ladder") == section(second, "Ladder")
    assert section(first, "Stack") == section(second, "Stack")


def test_an_accepted_unsupported_stage_is_named(plan: Plan) -> None:
    accepted = standing(TP, opens=True, unsupported="the vendor says so", checks=())
    text = render("run", plan, [standing(FSDP), accepted])
    assert f"with {TP} unsupported and accepted" in text.splitlines()[0]
