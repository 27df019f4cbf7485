"""What Dynamo asks of a device."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface

from torch_neuron_rehearsal import neuron


class NeuronInterface(DeviceInterface):
    """The device, by Dynamo's names."""

    Stream = neuron.Stream
    Event = neuron.Event
    device = neuron.device  # type: ignore[assignment]  # its parameters have other names
    current_device = staticmethod(neuron.current_device)
    set_device = staticmethod(neuron.set_device)  # type: ignore[assignment]  # its parameters have other names
    device_count = staticmethod(neuron.device_count)
    is_available = staticmethod(neuron.is_available)
    synchronize = staticmethod(neuron.synchronize)  # type: ignore[assignment]  # its parameters have other names
    current_stream = staticmethod(neuron.current_stream)
    set_stream = staticmethod(torch.accelerator.set_stream)
    stream = neuron.stream  # type: ignore[assignment]  # its parameters have other names
    get_device_properties = staticmethod(neuron.get_device_properties)  # type: ignore[assignment]  # its parameters have other names

    class Worker:
        """The same, where torch compiles in processes of their own."""

        current_device = staticmethod(neuron.current_device)
        set_device = staticmethod(neuron.set_device)
        get_device_properties = staticmethod(neuron.get_device_properties)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """The architecture."""
        return "trn2"

    @staticmethod
    def get_raw_stream(index: int) -> int:
        """There is one queue, and it is empty when a call returns."""
        return 0

    @staticmethod
    def exchange_device(index: int) -> int:
        """Make a core current, and give the one that was."""
        return torch._C._accelerator_exchangeDevice(index)

    @staticmethod
    def maybe_exchange_device(index: int) -> int:
        """The same, where there is such a core."""
        return torch._C._accelerator_maybeExchangeDevice(index)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """It is, as far as the CPU's kernels have it."""
        return True
