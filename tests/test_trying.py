from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_training import Defect, FakeTraining, Launch, calm_host, ends, ladder_plan
from trn_validate.config import Plan
from trn_validate.errors import ConfigError, MeasurementError, UsageError
from trn_validate.launch import Cause, FakeLauncher
from trn_validate.selection import Selection
from trn_validate.store import Store
from trn_validate.trying import try_kernel

__all__ = ["calm_host"]
ONLY = Selection(only="kernels.nki")


def tried(
    plan: Plan,
    folder: Path,
    *defects: Defect,
    name: str = "rmsnorm",
    selection: Selection = ONLY,
    as_json: bool = False,
) -> int:
    return try_kernel(
        Path(plan.source),
        "native",
        (),
        selection,
        name,
        reports=folder / "reports",
        as_json=as_json,
        launcher=FakeLauncher(FakeTraining(*defects)),
    )


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return ladder_plan(tmp_path)


def over(launch: Launch) -> None:
    assert launch.answer is not None
    launch.answer["checks"][1]["measured"] = 2.5


def test_every_check_is_printed_and_the_record_is_kept_beside_no_verdict(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(plan, tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines[:4]] == ["ok    "] * 4
    assert lines[-1].startswith("4/4 checks; the record is in ")
    (run,) = Store(tmp_path / "reports").runs()
    assert run.stages_present() == ()
    kept = run.folder / "kernels.nki" / "try-1" / "ops-rmsnorm"
    assert {"kernel.json", "answer.json"} <= {path.name for path in kept.iterdir()}


def test_each_try_has_a_number_of_its_own_and_is_no_attempt(plan: Plan, tmp_path: Path) -> None:
    assert [tried(plan, tmp_path) for _ in range(2)] == [0, 0]
    (run,) = Store(tmp_path / "reports").runs()
    tries = sorted(path.name for path in (run.folder / "kernels.nki").iterdir())
    assert tries == ["try-1", "try-2"]
    assert run.attempts("kernels.nki") == () and run.new_attempt("kernels.nki").number == 1


def test_a_check_that_fails_gives_1_and_is_named(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(plan, tmp_path, over) == 1
    out = capsys.readouterr().out
    assert "FAILED  rmsnorm float32, one row: largest error: 2.5 <= 2.0" in out
    assert "first that failed: rmsnorm float32, one row" in out


def test_a_process_that_died_is_no_answer(plan: Plan, tmp_path: Path) -> None:
    dies = ends(Cause.CRASH, "Segmentation fault", "Fatal Python error\n")
    with pytest.raises(MeasurementError, match="Segmentation fault") as caught:
        tried(plan, tmp_path, dies)
    assert caught.value.exit_status == 4 and "Fatal Python error" in str(caught.value)


def test_json_is_the_checks_alone(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(plan, tmp_path, over, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["passed"] for one in told] == [True, True, True, False]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection(only="kernels.compile"),
        Selection(only="kernels.nki", force=True),
        Selection(only="kernels.nki", require_evidence=True),
    ],
)
def test_it_goes_with_its_own_stage_alone(plan: Plan, tmp_path: Path, selection: Selection) -> None:
    with pytest.raises(ConfigError, match="goes with --only"):
        tried(plan, tmp_path, selection=selection)
    assert not (tmp_path / "reports").exists()


def test_a_kernel_that_is_not_listed_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kernel 'rope'"):
        tried(plan, tmp_path, name="rope")
