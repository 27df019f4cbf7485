"""The process group ``neuron``: gloo on the same bytes."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Store

from torch_neuron_rehearsal import _device


def register(*, strict: bool) -> None:
    """Make ``neuron`` the backend of tensors on the device."""
    if not dist.is_available():
        return
    first = True

    def create(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
        nonlocal first
        if first:
            if strict and _device.initialized():
                raise RuntimeError(
                    "Neuron runtime should not be initialized before the init_process_group."
                )
            _place()
            first = False
        _device.initialize()
        return over_gloo(store, rank, size, timeout)

    dist.Backend.register_backend("neuron", create, devices=["neuron"])


def over_gloo(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """A group whose tensors are on the device."""
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    return _device.group_over(gloo, "neuron")


def _place() -> None:
    """Give this rank the core of its LOCAL_RANK: afterwards the host's ranks are its devices."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        _device.set_core_count(int(os.environ["LOCAL_WORLD_SIZE"]))
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
