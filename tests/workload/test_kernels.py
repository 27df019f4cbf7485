from __future__ import annotations

import pytest
import torch
from torch import nn

from trn_validate.kernels import launches, swiglu
from trn_validate.spec import KernelUse
from trn_validate.workload.kernels import begin_counting, kernels_record

HERE = __name__


class Stock(nn.Module):
    """What could call a kernel."""


class Calls(Stock):
    """What does."""


class Other(Stock):
    """A subclass that no override claims."""


def use(name: str = "one", by: str = "Calls") -> KernelUse:
    return KernelUse(
        name=name, override="a.b", replaces=f"{HERE}:Stock", by=f"{HERE}:{by}", launches={"k": 1}
    )


def model() -> nn.Module:
    inner = nn.ModuleDict({"norm": Calls(), "stock": Stock(), "other": Other(), "act": nn.ReLU()})
    return nn.ModuleDict({"layers": inner})


def test_what_was_replaced_and_what_was_left_is_told_by_name() -> None:
    record = kernels_record([use()], [model()])
    assert record.replaced == {"one": ("layers.norm",)}
    assert record.left == {"one": ("layers.stock", "layers.other")}


def test_each_kernel_has_its_own_census_over_all_parts_of_the_model() -> None:
    record = kernels_record([use(), use("two", by="Other")], [model(), nn.Sequential(Calls())])
    assert record.replaced == {"one": ("layers.norm", "0"), "two": ("layers.other",)}
    assert record.left["two"] == ("layers.norm", "layers.stock", "0")


def test_only_launches_since_counting_began_are_told() -> None:
    rows = [torch.randn(3, 5) for _ in range(2)]
    swiglu.swiglu(*rows)
    begin_counting()
    assert kernels_record([use()], [model()]).launches == {}
    swiglu.swiglu(*rows)
    record = kernels_record([use()], [model()])
    assert record.launches == {"swiglu_forward": 1} and record.traced == {}
    assert (record.provider, bool(record.reason)) == ("interpreter", True)
    launches.reset()


def test_a_class_that_is_not_there_is_no_silent_zero() -> None:
    with pytest.raises(AttributeError, match="Missing"):
        kernels_record([use(by="Missing")], [model()])
