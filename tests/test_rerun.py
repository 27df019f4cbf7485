from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.builders import ROOT, load_plan
from trn_validate.config import Plan
from trn_validate.rerun import continue_command, rerun_command
from trn_validate.run import Run

NAME = "cpu.native.20261202T021530Z"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return load_plan(tmp_path).model_copy(update={"source": "configs/cpu.yaml"})


def in_folder(reports: Path) -> Run:
    return Run(reports, NAME, ROOT)


def test_it_repeats_plan_path_and_settings(plan: Plan) -> None:
    plan = plan.model_copy(update={"settings": ("limits.loss_fall=0.1", "a=b c")})
    assert rerun_command(plan, in_folder(ROOT / "reports"), "baseline.eager") == (
        "python pipeline.py run --config configs/cpu.yaml --path native "
        "--set limits.loss_fall=0.1 --set 'a=b c' --only baseline.eager"
    )


def test_going_on_with_a_run_names_no_stage(plan: Plan) -> None:
    run = in_folder(ROOT / "out")
    assert rerun_command(plan, run, "kernels.compile") == (
        f"{continue_command(plan, run)} --only kernels.compile"
    )


@pytest.mark.parametrize("reports", ["out", "out/deeper", "my runs", "../beside"])
def test_a_folder_of_the_checkout_is_named_as_it_is_typed_there(plan: Plan, reports: str) -> None:
    typed = shlex.split(rerun_command(plan, in_folder(ROOT / reports), "baseline.eager"))
    assert typed[-4:] == ["--reports", reports, "--only", "baseline.eager"]


def test_a_folder_elsewhere_is_for_the_reader_to_put_in(plan: Plan, tmp_path: Path) -> None:
    text = rerun_command(plan, in_folder(tmp_path / "reports"), "baseline.eager")
    assert text.endswith(" --reports '<reports>' --only baseline.eager")
    assert str(tmp_path) not in text


def test_it_says_the_same_wherever_it_is_asked(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = in_folder(ROOT / "out")
    before = rerun_command(plan, run, "baseline.eager")
    for folder in (Path("/"), tmp_path):
        monkeypatch.chdir(folder)
        assert rerun_command(plan, run, "baseline.eager") == before
