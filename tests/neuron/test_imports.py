from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.fake_training import lineage_answer
from trn_validate.neuron import imports
from trn_validate.neuron.imports import AUTOLOAD, CHECKS, LINEAGE, judge_imports
from trn_validate.stage import Findings

OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
STAND_IN = [{"value": "stand_in:_autoload", "distribution": "stand-in 0.1"}]


@pytest.fixture(autouse=True)
def _bare_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that names nothing of itself, with no package of the vendor."""

    def unnamed() -> dict[str, str]:
        raise OSError("no os-release")

    monkeypatch.setattr(platform, "freedesktop_os_release", unnamed)
    monkeypatch.setattr(imports, "installed", lambda: {"torch": "2.14.1"})


def judged(root: Path, **changes: object) -> Findings:
    return judge_imports(root, lineage_answer({}) | changes, lineage_answer(OFF), {})


def failing(findings: Findings) -> list[str]:
    return [check.name for check in findings.checks if not check.passed]


def test_an_installation_of_no_known_release_is_judged_to_its_end(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert {check.name for check in found.checks} == {*CHECKS}
    assert failing(found) == []
    assert "torch 2.14.1" in found.facts["warning release_unknown"]
    assert "neuron release" not in found.facts
    assert found.versions == {"torch": "2.14.1"}


def test_a_package_may_stand_in_only_where_the_host_root_was_moved(tmp_path: Path) -> None:
    moved = judged(tmp_path, backends=STAND_IN, modules=[])
    assert failing(moved) == []
    assert moved.execution is not None
    assert moved.execution.distribution == "stand-in 0.1"
    assert failing(judged(Path("/"), backends=STAND_IN, modules=[])) == [LINEAGE]


def test_probes_that_left_nothing_fail_and_name_no_lineage(tmp_path: Path) -> None:
    found = judge_imports(tmp_path, {}, {}, {})
    assert failing(found) == [AUTOLOAD]
    assert LINEAGE not in {check.name for check in found.checks}
    assert (found.execution, "lineage" in found.facts) == (None, False)
