from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trn_validate.errors import KernelError
from trn_validate.kernels import interpreter
from trn_validate.kernels.interpreter import isa as nisa
from trn_validate.kernels.interpreter import language as nl
from trn_validate.kernels.namespace import Namespace
from trn_validate.kernels.providers import Device, Interpreter, Simulator, choose, provider

TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"


class Nki:
    """The real package, as far as providers call it."""

    def __init__(self) -> None:
        self.targets: list[str | None] = []
        self.jit = lambda function: function

    def simulate(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        self.targets.append(os.environ.get(TARGET))
        return kernel


class Kernel:
    """A kernel of that package: the sum of its tensors, on as many cores as it was told."""

    def __init__(self) -> None:
        self.launched: list[int] = []

    def __getitem__(self, lnc: int) -> Callable[..., Any]:
        def run(*arguments: Any) -> torch.Tensor:
            self.launched.append(lnc)
            return arguments[0] + arguments[1]

        return run


def real(nki: Any) -> Namespace:
    return Namespace(nki, None, None, genuine=True, reason="")


ABSENT = Namespace(interpreter, None, None, genuine=False, reason="nki: no such package")


def fails(error: Exception) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


def test_without_nki_it_is_the_interpreter_even_with_a_device() -> None:
    found = choose(ABSENT, lambda: SimpleNamespace(nki_op=len))
    assert (found.name, found.reason) == ("interpreter", "nki: no such package")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'torch_neuronx'"), "ModuleNotFoundError"),
        (RuntimeError("no device"), "RuntimeError: no device"),
        (AttributeError("no nki_op"), "no nki_op"),
    ],
    ids=["absent", "no device", "legacy"],
)
def test_with_nki_and_no_device_it_is_the_simulator_and_says_why(
    error: Exception, reason: str
) -> None:
    found = choose(real(Nki()), fails(error))
    assert found.name == "simulator" and reason in found.reason


def test_with_nki_and_a_device_it_is_the_device() -> None:
    found = choose(real(Nki()), lambda: SimpleNamespace(nki_op=len))
    assert (found.name, found.device) == ("device", "neuron")


def test_this_process_names_its_provider_and_the_reason() -> None:
    assert provider().name in ("device", "simulator", "interpreter")
    assert (provider().name == "device") == (provider().reason == "")
    assert (provider().name == "device") == (provider().device != "cpu")


@pytest.mark.parametrize("before", [None, "trn3"])
def test_the_simulator_simulates_a_trn2_and_puts_the_target_back(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv(TARGET, raising=False)
    else:
        monkeypatch.setenv(TARGET, before)
    nki, kernel = Nki(), Kernel()
    (found,) = Simulator(nki, "").run(kernel, 2, (torch.ones(3), torch.ones(3)))
    assert torch.equal(found, torch.full((3,), 2.0))
    assert (nki.targets, kernel.launched) == (["trn2"], [2])
    assert os.environ.get(TARGET) == before


def test_the_device_launches_the_kernel_itself_and_registers_by_nki_op() -> None:
    calls: list[Any] = []

    def nki_op(name: str, mutates_args: Any) -> Callable[..., Any]:
        calls.append((name, mutates_args))
        return lambda body: body

    device, kernel = Device(nki_op), Kernel()
    assert device.register("ns::op", len, max) is len
    assert calls == [("ns::op", {})]
    assert device.run(kernel, 2, (torch.ones(1), torch.ones(1))).item() == 2.0
    assert kernel.launched == [2]


def copied(source: nl.NkiTensor) -> nl.NkiTensor:
    out = nl.ndarray(source.shape, source.dtype, nl.shared_hbm)
    nisa.dma_copy(out, source)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_the_interpreter_takes_and_gives_torch_tensors(dtype: torch.dtype) -> None:
    given = torch.arange(12).reshape(3, 4).to(dtype).T
    (found,) = Interpreter("").run(interpreter.jit(copied), 1, (given,))
    assert found.dtype == dtype and torch.equal(found, given)
    assert found.data_ptr() != given.data_ptr()


def test_the_interpreter_leaves_storage_that_can_be_freed_as_fsdp_does() -> None:
    given = torch.ones(2, 3)
    (found,) = Interpreter("").run(interpreter.jit(copied), 1, (given,))
    given.untyped_storage().resize_(0)
    assert given.untyped_storage().size() == 0
    assert torch.equal(found, torch.ones(2, 3))


def test_the_interpreter_refuses_a_dtype_that_no_kernel_takes() -> None:
    with pytest.raises(KernelError, match="float64"):
        Interpreter("").run(interpreter.jit(copied), 1, (torch.ones(2, 2, dtype=torch.float64),))
