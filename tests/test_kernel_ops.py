from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ROOT, check
from trn_validate import plan as plans
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.kernel_entry import Kernel
from trn_validate.kernel_list import load_kernels
from trn_validate.kernel_ops import ops_checks, ops_names, ops_request, write_entry

KERNEL = load_kernels()[0]
PROVIDER, UNMADE = ops_names(KERNEL)
ACCURATE = "rmsnorm float32, ragged: largest error"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plans.load(ROOT / "configs/cpu.yaml")


def made(plan: Plan, folder: Path, **changes: Any) -> dict[str, Check]:
    """The checks on an answer of a healthy process, changed so."""
    request = ops_request(plan, folder, KERNEL)
    write_entry(request, KERNEL)
    one = check(name=ACCURATE, measured=1.0, limit=2.0)
    answer = {
        "provider": "interpreter",
        "reason": "nki is not there",
        "owed": [ACCURATE],
        "checks": [one.model_dump(mode="json", exclude={"passed"})],
    }
    text = json.dumps(answer | changes)
    (request.folder / "answer.json").write_text(text, encoding="utf-8")
    return {one.name: one for one in ops_checks(plan, request, KERNEL)}


def test_the_process_is_given_the_entry_and_one_thread(plan: Plan, tmp_path: Path) -> None:
    request = ops_request(plan, tmp_path, KERNEL)
    write_entry(request, KERNEL)
    assert Kernel.model_validate_json(Path(request.argv[-2]).read_bytes()) == KERNEL
    assert request.env["OMP_NUM_THREADS"] == "1"
    assert request.wall_seconds == plan.timeouts.wall


def test_a_whole_answer_passes(plan: Plan, tmp_path: Path) -> None:
    found = made(plan, tmp_path)
    assert list(found) == [PROVIDER, UNMADE, ACCURATE]
    assert all(one.passed for one in found.values())
    assert found[PROVIDER].detail == "nki is not there"


@pytest.mark.parametrize(
    "changes",
    [
        {"owed": [ACCURATE, "rmsnorm float32: another"]},
        {"owed": [], "checks": []},
        {"checks": []},
        {"error": "rmsnorm_forward: 300 partitions", "checks": []},
    ],
)
def test_a_check_that_was_not_made_fails(
    plan: Plan, tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = made(plan, tmp_path, **changes)
    assert [name for name, one in found.items() if not one.passed] == [UNMADE]
    if "error" in changes:
        assert found[UNMADE].detail == changes["error"]


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"provider": 3}'])
def test_an_answer_that_cannot_be_read_passes_nothing(
    plan: Plan, tmp_path: Path, text: str
) -> None:
    request = ops_request(plan, tmp_path, KERNEL)
    write_entry(request, KERNEL)
    if text:
        (request.folder / "answer.json").write_text(text, encoding="utf-8")
    found = ops_checks(plan, request, KERNEL)
    assert [one.name for one in found if one.passed] == []


def test_on_a_device_nothing_but_the_device_counts(tmp_path: Path) -> None:
    neuron = plans.load(ROOT / "configs/trn2.48xlarge.yaml")
    assert not made(neuron, tmp_path)[PROVIDER].passed
    assert made(neuron, tmp_path, provider="device")[PROVIDER].passed
