"""Whether autograd is registered, where torch's own opcheck cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trn_validate.kernels.opcheck import registration

AUTOGRAD = "test_autograd_registration"


def operator(name: str) -> Any:
    """An operator that doubles, and whose gradient is known."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    made = torch.library.custom_op(f"registration_test::{name}", body, mutates_args=())
    made.register_fake(lambda x: torch.empty_like(x))
    made.register_autograd(lambda ctx, grad: grad * 2)
    return getattr(torch.ops.registration_test, name).default


@pytest.fixture(params=[True, False], ids=["known device", "another device"])
def device(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            # The CPU stands for a device that opcheck does not know.
            patch.setattr(registration, "_KNOWN", frozenset({"cuda"}))
        yield request.param


def test_an_operator_with_a_gradient_has_no_fault(device: bool) -> None:
    one = operator(f"whole_{device}")
    assert registration._faults((one, (torch.randn(3),), True)) == []


def test_backward_operators_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_KNOWN", frozenset({"cuda"}))
    assert registration._faults((torch.ops.aten.mul.Tensor, (torch.ones(2), 2.0), False)) == []


def test_an_operator_without_one_is_told_on_a_device_that_opcheck_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "_KNOWN", frozenset({"cuda"}))
    library = torch.library.Library("registration_bare", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    torch.library.register_fake("registration_bare::double", torch.empty_like, lib=library)
    bare = torch.ops.registration_bare.double.default
    assert not registration.has_autograd(bare)
    faults = registration._faults((bare, (torch.randn(3),), True))
    assert f"{bare}: {AUTOGRAD}" in faults
