from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import ROOT
from tests.fake_training import Defect, altered, imagined, ladder_plan, without
from trn_validate import plan as plans
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.kernel_list import load_kernels
from trn_validate.kernel_use import use_checks, use_names
from trn_validate.launching import Trial
from trn_validate.records import Kernels
from trn_validate.spec import CompileChoice

USES = tuple(kernel.use for kernel in load_kernels()[:2])
PROVIDER, MODULES, LAUNCHES = use_names("fsdp")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_plan(tmp_path_factory.mktemp("plan"))


def used(plan: Plan, *defects: Defect, recompute: str = "none") -> Trial:
    """A launch on two ranks with two kernels."""
    asked = {"kernels": USES, "activation_checkpointing": recompute}
    return imagined(plan, "fsdp", *defects, fields=asked)


def checks(plan: Plan, trial: Trial) -> dict[str, Check]:
    return {check.name: check for check in use_checks(plan, trial)}


def failing(plan: Plan, trial: Trial) -> list[str]:
    return [name for name, check in checks(plan, trial).items() if not check.passed]


def test_kernels_that_every_module_calls_as_often_as_it_has_to_pass(plan: Plan) -> None:
    found = checks(plan, used(plan))
    assert list(found) == [PROVIDER, MODULES, LAUNCHES]
    assert all(check.passed for check in found.values())
    assert found[PROVIDER].measured == "interpreter"
    assert found[PROVIDER].detail == "nki is not there"


def test_on_a_device_nothing_but_the_device_counts(plan: Plan) -> None:
    neuron = plans.load(ROOT / "configs/trn2.48xlarge.yaml")
    trial = used(plan)
    assert failing(neuron, trial) == [PROVIDER]
    assert failing(neuron, used(plan, altered(Kernels, provider="device"))) == []
    one = used(plan, altered(Kernels, rank=1, provider="device"))
    assert checks(neuron, one)[PROVIDER].measured == "device and interpreter"
    assert failing(neuron, one) == [PROVIDER]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("launches", [{}, {"rmsnorm_forward": 11}])
def test_a_kernel_that_was_launched_less_often_than_owed_fails(
    plan: Plan, launches: dict[str, int], recompute: str
) -> None:
    fewer = altered(Kernels, rank=1, launches=lambda old: (old | launches) if launches else {})
    trial = used(plan, fewer, recompute=recompute)
    assert failing(plan, trial) == [LAUNCHES]
    detail = checks(plan, trial)[LAUNCHES].detail
    assert detail.startswith("rmsnorm_forward of rank 1: ")
    assert "12 owed" in detail


def test_more_launches_than_owed_pass_only_where_the_forward_is_computed_again(plan: Plan) -> None:
    more = altered(Kernels, launches=lambda old: {name: 2 * n for name, n in old.items()})
    assert failing(plan, used(plan, more)) == [LAUNCHES]
    assert failing(plan, used(plan, more, recompute="full")) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"left": {"rmsnorm": ("norm",)}}, "norm of rank 1 (rmsnorm)"),
        ({"replaced": {"rmsnorm": (), "swiglu": ("layers.0",)}}, "rmsnorm replaces nothing"),
        ({"replaced": {}}, "rmsnorm replaces nothing on rank 1"),
    ],
)
def test_a_module_without_its_kernel_fails_and_is_named(
    plan: Plan, change: dict[str, Any], told: str
) -> None:
    trial = used(plan, altered(Kernels, rank=1, **change))
    assert MODULES in failing(plan, trial)
    assert told in checks(plan, trial)[MODULES].detail


@pytest.mark.parametrize(
    "defect", [without(Kernels), without(Kernels, rank=1), lambda launch: launch.lines.clear()]
)
def test_a_rank_that_tells_nothing_of_its_kernels_passes_nothing(
    plan: Plan, defect: Callable[[Any], object]
) -> None:
    names = failing(plan, used(plan, defect))
    assert {MODULES, LAUNCHES} <= set(names)


def test_on_a_device_a_compiled_kernel_is_seen_when_it_is_traced(plan: Plan) -> None:
    asked = {"kernels": USES, "compiled": CompileChoice(backend="neuron")}

    def checked(**changes: Any) -> list[str]:
        spoilt = altered(Kernels, provider="device", launches={}, **changes)
        neuron = plans.load(ROOT / "configs/trn2.48xlarge.yaml")
        return failing(neuron, imagined(plan, "fsdp", spoilt, fields=asked))

    every = {name: 2 for use in USES for name in use.launches}
    assert checked(traced=every) == []
    assert checked(traced={}) == [LAUNCHES]
    assert checked(traced=every | {"swiglu_backward": 0}) == [LAUNCHES]
