from __future__ import annotations

from typing import Any

import pytest
import torch

from trn_validate.errors import KernelError
from trn_validate.kernels import launches
from trn_validate.kernels.interpreter import isa as nisa
from trn_validate.kernels.interpreter import jit
from trn_validate.kernels.interpreter import language as nl
from trn_validate.kernels.providers import provider

pytestmark = pytest.mark.skipif(
    provider().name != "interpreter", reason="its kernels are the interpreter's"
)
LNC = "NEURON_LOGICAL_NC_CONFIG"


@jit
def cores_kernel(source: nl.NkiTensor) -> Any:
    """One element: how many programs there are."""
    out = nl.ndarray((1, 1), nl.float32, nl.shared_hbm)
    if nl.program_id(0) == 0:
        made = nl.ndarray((1, 1), nl.float32, nl.sbuf)
        nisa.memset(made, float(nl.num_programs(0)))
        nisa.dma_copy(out, made)
    return out


@jit
def broken_kernel(source: nl.NkiTensor) -> Any:
    return source


@pytest.mark.parametrize(("text", "count"), [(None, 2), ("1", 1), ("2", 2)])
def test_a_launch_has_as_many_cores_as_the_runtime_is_told(
    monkeypatch: pytest.MonkeyPatch, text: str | None, count: int
) -> None:
    monkeypatch.delenv(LNC, raising=False)
    if text is not None:
        monkeypatch.setenv(LNC, text)
    (found,) = launches.launch("cores", cores_kernel, torch.ones(1, 1))
    assert found.item() == count
    assert launches.counts() == {"cores": 1}


@pytest.mark.parametrize("text", ["", "3", "two"])
def test_another_number_of_cores_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(LNC, text)
    with pytest.raises(KernelError, match=LNC):
        launches.cores()


def test_a_check_can_set_the_cores_and_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LNC, "2")
    with launches.on_cores(1):
        assert launches.cores() == 1
    assert launches.cores() == 2


def test_a_launch_that_failed_is_not_counted_and_nothing_stands_in_for_it() -> None:
    with pytest.raises(KernelError, match="outputs in shared HBM"):
        launches.launch("broken", broken_kernel, torch.ones(1, 1))
    assert launches.counts() == {}


def test_counting_starts_from_zero() -> None:
    launches.launch("cores", cores_kernel, torch.ones(1, 1))
    launches.reset()
    assert launches.counts() == {}
