"""The control again with other signs: what is launched, what is said, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages import stages_of
from tests.fake_training import Rig, altered, bent, within
from trn_validate import calibrate as module
from trn_validate.calibrate import calibrate, show_calibration
from trn_validate.errors import EvidenceError
from trn_validate.gate import Gate
from trn_validate.ladder import resolve
from trn_validate.launch import FakeLauncher
from trn_validate.records import Step


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A run whose baseline passed."""
    rig = Rig(tmp_path_factory.mktemp("calibrate"))
    assert rig.walk() == 0
    return rig


def spreads(rig: Rig, repeats: int) -> dict[str, module.Spread]:
    rung = resolve(rig.plan.ladders[0])[0]
    found = calibrate(rig.context(module.FOLDER), rung, repeats)
    return {spread.figure: spread for spread in found}


def test_each_control_has_signs_of_its_own_and_none_has_those_of_the_verdict(rig: Rig) -> None:
    before = len(rig.launcher.requests)
    spreads(rig, 3)
    requests = rig.launcher.requests[before:]
    assert [request.name for request in requests] == ["control-2", "control-3", "control-4"]
    signs = [
        json.loads((request.folder / "spec.json").read_text(encoding="utf-8"))["perturb"]
        for request in requests
    ]
    assert signs == [2, 3, 4]


def test_the_spread_holds_the_least_and_the_most_of_all_controls(rig: Rig) -> None:
    rig.spoil(within("control-3", altered(Step, step=2, loss=lambda loss: loss + 1e-5)))
    loss = spreads(rig, 2)["loss_absolute"]
    rig.spoil()
    assert loss.least == 0.0
    assert loss.most == pytest.approx(1e-5)
    assert loss.median == pytest.approx(5e-6)
    assert loss.limit == 5e-6
    assert not loss.quiet


def test_a_control_above_the_limit_of_a_gradient_is_not_quiet(rig: Rig) -> None:
    assert spreads(rig, 2)["gradient_relative"].quiet
    rig.spoil(within("control-2", bent("gradient", lambda a: a * 1.01)))
    loud = spreads(rig, 2)["gradient_relative"]
    rig.spoil()
    assert loud.most == pytest.approx(1e-2, rel=1e-2)
    assert not loud.quiet


def shown(rig: Rig, monkeypatch: pytest.MonkeyPatch, *, as_json: bool = False) -> int:
    """What the command does in the run of ``rig``, its launches imagined."""
    monkeypatch.setattr(module, "launcher_of", lambda plan: FakeLauncher(rig.training))
    monkeypatch.setattr(module, "fingerprint_now", lambda: rig.environment)
    monkeypatch.setattr(
        module,
        "gate_of",
        lambda stages, plan, run, environment: Gate(
            rig.plan, stages_of(rig.plan), run, code=rig.code, environment=rig.environment
        ),
    )
    source = Path(rig.plan.source)
    return show_calibration(
        stages_of, source, "native", (), 2, reports=rig.store.root, as_json=as_json
    )


def test_the_command_prints_a_table_keeps_the_figures_and_leaves_every_verdict(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {stage: rig.verdict(stage) for stage in rig.outcomes()}
    assert shown(rig, monkeypatch) == 0
    told = capsys.readouterr()
    first, launched = told.err.splitlines()[:2]
    assert first == "[1/1] calibrate.control debug: how do 2 controls spread?"
    # Counted from its start, and not from that of the machine.
    assert float(launched.split()[0]) < 60
    out = told.out.splitlines()
    assert out[0] == "ladder debug: 2 controls with other signs"
    assert [line.split()[0] for line in out[2:]] == list(module.MEASURES)
    assert {stage: rig.verdict(stage) for stage in rig.outcomes()} == before
    assert all(state.freshness.fresh for state in rig.gate.standings())
    assert list((rig.run.folder / module.FOLDER).glob("*/spread.json"))


def test_json_is_alone_on_stdout(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(rig, monkeypatch, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["figure"] for row in told["debug"]] == list(module.MEASURES)


def test_a_limit_that_would_not_have_held_gives_1(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.spoil(within("control-3", bent("gradient", lambda a: a * 1.01)))
    status = shown(rig, monkeypatch)
    rig.spoil()
    assert status == 1


def test_without_a_reference_that_passed_there_is_nothing_to_calibrate_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, within("reference", altered(Step, loss=7.0)))
    assert rig.walk() == 1
    with pytest.raises(EvidenceError, match="no fresh verdict"):
        shown(rig, monkeypatch)
    assert not (rig.run.folder / module.FOLDER).exists()
