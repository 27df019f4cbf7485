from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.builders import load_plan
from tests.review.test_answers import vendor
from tests.review.test_summary import none_yet
from trn_validate.config import Plan
from trn_validate.review.report import render
from trn_validate.review.vendor import HEADING, vendor_lines


@pytest.fixture
def cpu(tmp_path: Path) -> Plan:
    return load_plan(tmp_path)


@pytest.fixture
def neuron(cpu: Plan) -> Plan:
    return cpu.model_copy(update={"profile": cpu.profile.model_copy(update={"device": "neuron"})})


def rows(plan: Plan, *losses: float, **changes: Any) -> dict[str, str]:
    lines = vendor_lines(plan, vendor(*losses, **changes))
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {name: rest[0] for name, *rest in cells[2:]}


def test_a_plan_without_a_device_has_no_section_and_a_neuron_plan_says_that_none_ran(
    cpu: Plan, neuron: Plan
) -> None:
    assert vendor_lines(cpu, None) == []
    assert vendor_lines(neuron, None)[-1] == "Not run yet: make vendor-run"


def test_a_run_is_shown_with_outcome_exit_status_and_log(neuron: Plan) -> None:
    shown = rows(neuron, 9.0, 8.5, 8.25, 8.0, 7.5)
    assert (shown["outcome"], shown["exit status"], shown["cause"]) == ("passed", "0", "completed")
    assert shown["steps"] == "5 of 5"
    assert shown["loss by step"] == "1: 9, 2: 8.5, 3: 8.25, 4: 8, 5: 7.5"
    assert shown["log"] == "vendor.run/1/run/output.log"
    assert shown["not finite"] == "none"


def test_a_number_that_is_not_finite_stands_out(neuron: Plan) -> None:
    shown = rows(neuron, 9.0, math.inf)
    assert (shown["outcome"], shown["not finite"]) == ("failed", "step 2")


def test_a_run_that_a_limit_ended_has_no_exit_status_and_breaks_no_table(neuron: Plan) -> None:
    shown = rows(neuron, cause="hang", exit_status=None, what="a | b\nc")
    assert shown["exit status"] == "none: ended by a limit"
    assert (shown["cause"], shown["loss by step"]) == ("hang a / b c", "-")


def test_the_report_shows_it_beside_the_gate(cpu: Plan, neuron: Plan) -> None:
    standings = [none_yet("environment.device")]
    assert HEADING not in render("run", cpu, standings)
    text = render("run", neuron, standings, vendor(9.0))
    assert text.index("## What failed") < text.index(HEADING) < text.index("## Checks")
    assert "REHEARSAL: incomplete" in text.splitlines()[0]
