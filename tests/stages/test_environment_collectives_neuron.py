"""environment.collectives with a device: the vendor's own test comes first, and has to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.environment_collectives import FAMILY
from tests.builders import ROOT
from tests.fake_training import Defect, Launch, Rig, calm_host, ends, within
from tests.neuron.machine import Machine
from tests.neuron.test_watch import counts
from trn_validate import plan as plans
from trn_validate.launch import Cause
from trn_validate.stage import Place
from trn_validate.verdict import Outcome, Verdict

STAGE = "environment.collectives"
FIRST = "nccom-test allr on 4 ranks"


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    calm_host(monkeypatch)


@pytest.fixture
def small(tmp_path: Path) -> Machine:
    """A healthy trn2.3xlarge."""
    return Machine(tmp_path / "small", kind="trn2.3xlarge").build()


def verdict(machine: Machine, *defects: Defect) -> Verdict:
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    rig = Rig(machine.root.parent, counts(machine), *defects, plan=plan, choice=machine.install())
    for stage in ("environment.device", "environment.imports", STAGE):
        rig.walk(only=stage)
    return rig.verdict(STAGE)


def reports(value: object) -> Defect:
    def apply(launch: Launch) -> None:
        assert value is None or isinstance(value, dict)
        launch.answer = value

    return within(FIRST, apply)


def only_failed(found: Verdict) -> tuple[str, str]:
    assert found.outcome is Outcome.FAILED
    (check,) = found.failed_checks
    return check.name, str(check.measured)


def test_the_vendor_s_test_is_asked_for_every_size_and_its_figures_are_kept(small: Machine) -> None:
    found = verdict(small)
    assert found.outcome is Outcome.PASSED
    assert (found.device, found.execution is not None) == ("neuron", True)
    names = [c.name for c in found.checks if c.name.startswith("nccom-test")]
    assert FIRST in names and "nccom-test redsct on 2 ranks" in names
    assert len(names) == 3 * 2
    assert found.measures[f"{FIRST}: us for 1024 B"] == 6.19
    argv = next(c.argv for c in found.commands if c.name == FIRST)
    assert argv[1:7] == ("allr", "-r", "4", "-d", "fp32", "--check")


def test_without_the_tool_it_fails_and_says_what_to_install(small: Machine) -> None:
    small.loses("nccom-test")
    found = verdict(small)
    assert found.outcome is Outcome.FAILED
    assert {str(c.measured) for c in found.failed_checks} == {"tool_absent"}
    assert "install aws-neuronx-tools" in found.failed_checks[0].detail


def test_an_exit_status_that_is_not_0_fails_whatever_the_report_says(small: Machine) -> None:
    found = verdict(small, within(FIRST, ends(Cause.CRASH, "exit status 1")))
    assert only_failed(found) == (FIRST, "nccom_failed")


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"results": []},
        {"results": [{"size(B)": 1024}]},
        {"results": [{"size(B)": 1024, "time:avg(us)": 0.0}]},
    ],
    ids=["no file", "empty", "no results", "no time", "no time at all"],
)
def test_an_exit_status_of_0_without_results_is_no_pass(small: Machine, value: object) -> None:
    assert only_failed(verdict(small, reports(value))) == (FIRST, "nccom_unreported")


def test_a_plan_shows_the_commands_of_the_vendor_s_test() -> None:
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    (stage,) = FAMILY.members(plan)
    first = stage.launches(Place(plan=plan, private=Path("p"), seed=Path()))[0]
    assert first.argv[0] == "/opt/aws/neuron/bin/nccom-test"
