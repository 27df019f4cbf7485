"""What executes a kernel: one seam, three providers.

======================  =====================================  ==========================
provider                needs                                  executes
======================  =====================================  ==========================
``device``              ``nki``, ``torch_neuronx``, a device   the kernel, on the device
``simulator``           ``nki``                                ``nki.simulate``, as a trn2
``interpreter``         NumPy                                  :mod:`.interpreter`
======================  =====================================  ==========================

The first that is there is taken, once per process; :func:`provider` names it and says why no
better one was. Only ``device`` is evidence. There is no way back to a reference: a kernel that
cannot be launched raises.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._library.custom_ops import CustomOpDef

from trn_validate.errors import KernelError
from trn_validate.kernels.interpreter import Host
from trn_validate.kernels.namespace import FOUND, Namespace

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int32: "int32"}
_TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"


class Provider(Protocol):
    """What executes kernels, and how operators are registered for it."""

    name: str
    reason: str
    """Why no better provider was taken."""
    device: str
    """Where tensors have to be, in torch's words."""

    def register(
        self, name: str, body: Callable[..., Any], fake: Callable[..., Any]
    ) -> CustomOpDef:
        """Make ``body`` the operator ``name``, which mutates nothing."""

    def run(self, kernel: Any, lnc: int, arguments: tuple[Any, ...]) -> Any:
        """Outputs of the kernel on ``lnc`` cores."""


class Device:
    """TorchNeuron.

    Source: torch/guides/how-to-work-with-nki.rst of the Neuron documentation (2026-10-15): a
    kernel is called with tensors on the device, and ``nki_op`` registers the operator, with its
    body as its own fake. Guess: the exact form of ``mutates_args``, from beta source.
    """

    name = "device"
    reason = ""
    device = "neuron"

    def __init__(self, nki_op: Callable[..., Any]) -> None:
        self.nki_op = nki_op

    def register(
        self, name: str, body: Callable[..., Any], fake: Callable[..., Any]
    ) -> CustomOpDef:
        """Register by ``nki_op``; ``fake`` is not used."""
        op: CustomOpDef = self.nki_op(name, mutates_args={})(body)
        return op

    def run(self, kernel: Any, lnc: int, arguments: tuple[Any, ...]) -> Any:
        """Launch on the device that holds the tensors."""
        return kernel[lnc](*arguments)


class _Host:
    """What the two providers without a device share: operators whose body is opaque to torch."""

    device = "cpu"

    def register(
        self, name: str, body: Callable[..., Any], fake: Callable[..., Any]
    ) -> CustomOpDef:
        """Register body and fake."""
        op = torch.library.custom_op(name, body, mutates_args=())
        op.register_fake(fake)
        return op


class Simulator(_Host):
    """``nki.simulate``. Source: nki/guides/nki_simulator.rst.

    Guess: that the target is read at each call. Unset it would be a trn3.
    """

    name = "simulator"

    def __init__(self, nki: Any, reason: str) -> None:
        self.nki = nki
        self.reason = reason

    def run(self, kernel: Any, lnc: int, arguments: tuple[Any, ...]) -> Any:
        """Simulate a trn2 on the CPU."""
        device = _device(arguments)
        before = os.environ.get(_TARGET)
        os.environ[_TARGET] = "trn2"
        try:
            inputs = [one.cpu() if isinstance(one, torch.Tensor) else one for one in arguments]
            outputs = self.nki.simulate(kernel[lnc])(*inputs)
        finally:
            if before is None:
                del os.environ[_TARGET]
            else:
                os.environ[_TARGET] = before
        found = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(one.to(device) for one in found)


class Interpreter(_Host):
    """Our interpreter, by way of NumPy."""

    name = "interpreter"

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def run(self, kernel: Any, lnc: int, arguments: tuple[Any, ...]) -> Any:
        """Interpret on the CPU, wherever the tensors are."""
        inputs = [_host(one) if isinstance(one, torch.Tensor) else one for one in arguments]
        kinds = {name: kind for kind, name in _DTYPES.items()}
        device = _device(arguments)
        return tuple(
            torch.from_numpy(one.values).to(device, kinds[one.dtype])
            for one in kernel[lnc](*inputs)
        )


def _host(tensor: torch.Tensor) -> Host:
    """The tensor for the interpreter, which carries bfloat16 in float32."""
    kind = _DTYPES.get(tensor.dtype)
    if kind is None:
        raise KernelError(
            f"a kernel was given {tensor.dtype}", todo="Kernels take float32 and bfloat16."
        )
    carried = torch.float32 if kind == "bfloat16" else tensor.dtype
    # A copy: storage that NumPy has seen cannot be resized, and FSDP frees weights so.
    return Host(tensor.detach().to("cpu", carried, copy=True).numpy(), kind)


def _device(arguments: tuple[Any, ...]) -> torch.device:
    return next(one.device for one in arguments if isinstance(one, torch.Tensor))


def choose(found: Namespace, neuron: Callable[[], Any] | None = None) -> Provider:
    """The best provider that is there.

    Args:
        found: what the kernels were written against.
        neuron: imports ``torch_neuronx``; raises where it is not usable.
    """
    if not found.genuine:
        return Interpreter(found.reason)
    try:
        nki_op = (neuron or _torch_neuronx)().nki_op
    except Exception as error:  # a foreign package may raise anything
        return Simulator(found.nki, f"torch_neuronx: {type(error).__name__}: {error}")
    return Device(nki_op)


def _torch_neuronx() -> Any:
    """The package, if it has a device. Guess: ``torch.neuron``, from beta source."""
    package = importlib.import_module("torch_neuronx")
    count = torch.neuron.device_count()  # type: ignore[attr-defined] # put there by the package
    if count < 1:
        raise RuntimeError("no device")
    return package


@functools.cache
def provider() -> Provider:
    """The provider of this process."""
    return choose(FOUND)
