"""The soak: under which circumstances it runs, what it keeps, and what it prints."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import pytest

from scripts import soak
from scripts.soak import Repeat, keep_verdicts, margins, page, table, verdicts_of
from tests.builders import check, verdict
from tests.fake_training import Rig
from trn_validate.check import Basis, Check
from trn_validate.errors import ConfigError, UsageError

CPU = Path("configs/cpu.yaml")


def judged(name: str, measured: float, *, control: float = 0.0) -> Check:
    """A check whose limit was measured."""
    basis = Basis(floor=1e-5, factor=5.0, control=control, ceiling=1e-4)
    return check(name=name, measured=measured, limit=basis.limit, source="measured", basis=basis)


def options(folder: Path, **changes: object) -> argparse.Namespace:
    values: dict[str, object] = {
        "repeats": 2,
        "together": 1,
        "config": CPU,
        "settings": [],
        "reports": folder,
        "write": False,
    }
    return argparse.Namespace(**(values | changes))


def test_the_repeats_differ_in_seed_threads_and_load() -> None:
    repeats = [Repeat.of(number, 2) for number in range(20)]
    assert len({repeat.seed for repeat in repeats}) == 20
    assert {repeat.cores for repeat in repeats} == {1, 2}
    assert {repeat.busy for repeat in repeats} == {True, False}
    assert str(repeats[0].circumstances) == "seed 42, 2 cores, idle"


def test_margins_are_parts_of_the_limits_and_leave_out_what_no_control_bounds() -> None:
    found = margins(
        [
            verdict(checks=(judged("tp: gradient of step 1", 5e-6), check(name="tp: steps"))),
            verdict(checks=(judged("tp: gradient of step 1", 2e-5, control=8e-6),)),
        ]
    )
    (row,) = found
    assert (row.launch, row.figure) == ("tp", "gradient of step 1")
    assert row.parts == pytest.approx((0.5, 0.5))
    assert table(found)[2] == (
        "| tp | gradient of step 1 | 2 | 1.25e-05 | 2.00e-05 | 0.500 | 0.500 |"
    )


def test_the_page_says_how_many_passed_and_under_what() -> None:
    repeats = [Repeat.of(number, 2) for number in range(3)]
    text = page(
        margins([verdict(checks=(judged("tp: gradient of step 1", 5e-6),))]), repeats, 2, CPU
    )
    assert "3 runs, 2 of them passed" in text
    assert "- seed 43, 2 cores, beside a busy process" in text


def test_what_a_repeat_keeps_are_its_verdicts_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.walk() == 0
    folder = rig.store.root
    keep_verdicts(folder)
    assert [path.name for path in folder.iterdir()] == ["verdicts"]
    assert {v.stage for v in verdicts_of(folder)} == set(rig.outcomes())


def test_a_repeat_that_passed_is_not_run_again_until_the_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def run_once(repeat: Repeat, config: Path, folder: Path, settings: object) -> int:
        ran.append(repeat.number)
        rig = Rig(folder.parent / f"rig-{folder.name}")
        assert rig.walk() == 0
        rig.store.root.rename(folder)
        return 0

    monkeypatch.setattr(soak, "run_once", run_once)
    monkeypatch.setattr(soak, "code_version", lambda root: "1" * 64)
    reports = tmp_path / "soak"
    reports.mkdir()
    assert soak.soak(options(reports)) == 0
    assert soak.soak(options(reports, repeats=3)) == 0
    assert ran == [0, 1, 2]
    assert "3 of 3 runs passed" in capsys.readouterr().out
    monkeypatch.setattr(soak, "code_version", lambda root: "2" * 64)
    for folder in reports.glob("rig-*"):
        folder.rename(tmp_path / f"old-{folder.name}")
    soak.soak(options(reports, repeats=1))
    assert ran == [0, 1, 2, 0]


def test_runs_that_are_asked_for_together_are_under_way_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=30)

    def run_once(repeat: Repeat, *rest: object) -> int:
        both.wait()
        return 1

    monkeypatch.setattr(soak, "run_once", run_once)
    assert soak.soak(options(tmp_path, repeats=4, together=2)) == 1
    found = [Repeat.of(number, 2, 2).circumstances for number in range(2)]
    assert found == [
        "seed 42, 2 cores, beside 1 other run",
        "seed 43, 2 cores, beside a busy process and 1 other run",
    ]


def test_a_run_that_did_not_pass_fails_the_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "run_once", lambda *arguments: 1)
    assert soak.soak(options(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert "0 of 2 runs passed" in out
    assert "run 1 ended with status 1" in err


def test_a_soak_of_no_run_or_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one run"):
        soak.soak(options(tmp_path, repeats=0))
    with pytest.raises(UsageError, match="at least one run"):
        soak.soak(options(tmp_path, together=0))
    with pytest.raises(ConfigError, match="a plan of the CPU"):
        soak.soak(options(tmp_path, config=Path("configs/trn2.3xlarge.yaml")))
