from __future__ import annotations

from typing import Any

import pytest

from tests.fake_training import lineage_answer
from trn_validate.neuron.lineage import (
    LEGACY,
    LITE,
    NATIVE,
    NONE,
    OTHER,
    Answer,
    executing,
    judge_autoload,
    judge_lineage,
    lineage_of,
    parse,
)

STAND_IN = [{"value": "stand_in:_autoload", "distribution": "stand-in 0.1"}]


def answer(bare: bool = False, **changes: Any) -> Answer:
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if bare else {}
    read = parse(lineage_answer(env) | changes, "import torch")
    assert read.value is not None
    return read.value


def names(loaded: Answer | None, bare: Answer | None = None, rehearsal: bool = False) -> list[str]:
    told = (*judge_autoload(loaded, bare), *judge_lineage(loaded, rehearsal))
    return [finding.id for finding in told]


def test_a_native_installation_executes_and_has_no_fault() -> None:
    assert lineage_of(answer()) == NATIVE
    assert executing(answer()) == "torch-neuronx 2.14.3.0.1"
    assert names(answer(), answer(bare=True)) == []


@pytest.mark.parametrize("moved", [{"modules": []}, {"attributes": []}])
def test_one_capability_of_the_native_lineage_is_enough_to_tell_it(moved: dict[str, Any]) -> None:
    assert lineage_of(answer(**moved)) == NATIVE


@pytest.mark.parametrize(
    ("changes", "lineage"),
    [
        ({"privateuse1": "privateuseone", "modules": ["torch_neuronx.xla_impl"]}, LEGACY),
        ({"modules": ["libtorch_neuronx_lite"], "backends": []}, LITE),
        ({"modules": [], "attributes": ["get_fallback_ops"]}, LITE),
        ({"backends": STAND_IN, "modules": []}, OTHER),
        ({"privateuse1": "privateuseone", "modules": []}, NONE),
    ],
)
def test_any_other_lineage_is_named_and_fails(changes: dict[str, Any], lineage: str) -> None:
    loaded = answer(**changes)
    assert lineage_of(loaded) == lineage
    (finding,) = (f for f in judge_lineage(loaded, rehearsal=False) if f.id == "not_native")
    assert finding.what.startswith(lineage)


def test_only_a_rehearsal_may_have_another_package_stand_in() -> None:
    loaded = answer(backends=STAND_IN, modules=[], attributes=[])
    assert names(loaded) == ["not_native"]
    assert names(loaded, rehearsal=True) == []
    assert executing(loaded) == "stand-in 0.1"


def test_a_legacy_lineage_fails_in_a_rehearsal_too() -> None:
    legacy = answer(privateuse1="privateuseone", modules=["torch_neuronx.xla_impl"])
    assert names(legacy, rehearsal=True) == ["not_native"]
    assert executing(legacy) == ""


def test_an_autoload_that_breaks_torch_names_the_last_cause() -> None:
    why = "RuntimeError: Failed to load the backend extension <- OSError: libnrt.so.1"
    broken = answer(result=why)
    (finding,) = judge_autoload(broken, answer(bare=True))
    assert (finding.id, finding.what) == ("autoload_broken", why)
    assert judge_lineage(broken, rehearsal=False) == ()
    assert executing(broken) == ""


def test_a_torch_that_breaks_without_autoload_too_is_no_fault_of_the_backend() -> None:
    broken: dict[str, Any] = {"result": "ImportError: libtorch.so"}
    assert names(answer(**broken), answer(bare=True, **broken)) == ["torch_broken"]


def test_an_installation_without_an_entry_point_is_named() -> None:
    assert names(answer(backends=[], privateuse1="privateuseone", modules=[])) == [
        "no_entry_point",
        "not_native",
    ]


def test_two_backends_that_would_both_load_are_named() -> None:
    both = [*lineage_answer({})["backends"], *STAND_IN]
    (finding,) = judge_autoload(answer(backends=both), None)
    assert finding.id == "two_backends"
    assert "stand_in:_autoload of stand-in 0.1" in finding.what


def test_two_lineages_side_by_side_are_a_warning() -> None:
    modules = ["torch_neuronx.neuron_dynamo_backend", "libtorch_neuronx_lite"]
    (finding,) = judge_lineage(answer(modules=modules), rehearsal=False)
    assert (finding.id, finding.severity) == ("two_lineages", "warning")


def test_a_capability_that_is_gone_is_a_warning_that_names_it() -> None:
    (finding,) = judge_lineage(answer(attributes=["nki_op"]), rehearsal=False)
    assert (finding.id, finding.severity) == ("capability_missing", "warning")
    assert "get_fallback_ops" in finding.what


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"available": False}, "available False, 4 devices"),
        ({"devices": 0}, "available True, 0 devices"),
        ({"available": False, "runtime_error": "RuntimeError: status 1"}, "RuntimeError: status 1"),
    ],
)
def test_a_runtime_without_a_device_is_named(changes: dict[str, Any], what: str) -> None:
    (finding,) = judge_lineage(answer(**changes), rehearsal=False)
    assert (finding.id, finding.what) == ("runtime_unavailable", what)


@pytest.mark.parametrize("text", [{}, {"result": "imported"}, {"result": 3}])
def test_a_probe_that_died_is_a_finding_and_no_crash(text: dict[str, object]) -> None:
    read = parse(text, "import torch")
    assert read.value is None
    assert [finding.id for finding in read.findings] == ["probe_left_no_answer"]
    assert names(None) == []
