"""``torch.neuron``: the calls that torch and torchtitan make on a device module."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from torch_neuron_rehearsal import _device

is_rehearsal = True

Where = int | str | torch.device | None
"""A core; None is the current one."""


@dataclass(frozen=True)
class Properties:
    """Of a core."""

    total_memory: int
    """Bytes."""
    name: str = "rehearsal of trn2"
    multi_processor_count: int = 1


def _whole(where: Where = None) -> torch.device:
    device = torch.device("neuron", where) if isinstance(where, int) else where
    device = torch.device(device if device is not None else "neuron")
    return device if device.index is not None else torch.device("neuron", current_device())


def _index(where: Where = None) -> int:
    index: int = _whole(where).index
    return index


class Stream(torch.Stream):
    """A stream of the device."""

    def __new__(cls, device: Where = None, priority: int = 0, **parts: Any) -> Stream:
        """Make one on a core, or wrap one that is there."""
        # torch wraps one anew by its parts: stream_id, device_index and device_type.
        given = parts or {"device": _whole(device)}
        made: Stream = super().__new__(cls, priority=priority, **given)
        return made


class Event(torch.Event):
    """An event of the device."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        """Make one; it is recorded when it is told to be."""
        where = torch.device("neuron")
        made: Event = super().__new__(
            cls, device=where, enable_timing=enable_timing, blocking=blocking
        )
        return made


class stream:  # torch's name for it
    """Make a stream current for a while."""

    def __init__(self, chosen: torch.Stream | None) -> None:
        self.chosen = chosen

    def __enter__(self) -> torch.Stream | None:
        if self.chosen is not None:
            self.before = current_stream(self.chosen.device)
            torch.accelerator.set_stream(self.chosen)
        return self.chosen

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.chosen is not None:
            torch.accelerator.set_stream(self.before)


StreamContext = stream


class device:  # torch's name for it
    """Make a core current for a while."""

    def __init__(self, where: Where) -> None:
        self.index = _index(where)

    def __enter__(self) -> None:
        self.before = torch._C._accelerator_exchangeDevice(self.index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        torch._C._accelerator_setDeviceIndex(self.before)


def device_count() -> int:
    """Cores: those of the host, and once there is a process group those of its ranks."""
    count: int = _device.core_count()
    return count


def is_available() -> bool:
    """Whether there is a core.

    torchtitan asks before it compiles anything, so it is here that torch.compile is told.
    """
    from torch_neuron_rehearsal import compiler

    compiler.register()
    return device_count() > 0


def init() -> None:
    """Nothing: the runtime starts when it is used."""


is_initialized = _device.initialized
_is_in_bad_fork = _device.forked_after_use


def current_device() -> int:
    """Index of the current core."""
    index: int = torch._C._accelerator_getDeviceIndex()
    return index


def set_device(where: Where) -> None:
    """Make a core current."""
    torch._C._accelerator_setDeviceIndex(_index(where))


def synchronize(where: Where = None) -> None:
    """Nothing: a call returns when its work is done."""


def current_stream(where: Where = None) -> torch.Stream:
    """The current stream of a core."""
    return torch.accelerator.current_stream(_whole(where))


def set_stream(chosen: torch.Stream) -> None:
    """Make a stream current."""
    torch.accelerator.set_stream(chosen)


def get_device_name(where: Where = None) -> str:
    """A name for the log."""
    return f"rehearsal of neuron:{_index(where)}"


def get_device_properties(where: Where = None) -> Properties:
    """Name and memory of a core."""
    return Properties(total_memory=mem_get_info(where)[1])


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may compute in."""
    return [torch.float32, torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """It is, as far as the CPU's kernels have it."""
    return True


def empty_cache() -> None:
    """Nothing: memory goes back to the host at once."""


def mem_get_info(where: Where = None) -> tuple[int, int]:
    """Bytes that are free on a core, and all of them."""
    free, total = torch.accelerator.get_memory_info(_index(where))
    return int(free), int(total)


def memory_allocated(where: Where = None) -> int:
    """Bytes in use on a core."""
    return int(_device.memory(_index(where))[0])


def max_memory_allocated(where: Where = None) -> int:
    """Bytes that were in use at the most."""
    return int(_device.memory(_index(where))[1])


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def reset_peak_memory_stats(where: Where = None) -> None:
    """Count the peak from now on."""
    _device.reset_peak(_index(where))


def memory_stats(where: Where = None) -> dict[str, int]:
    """Memory of a core, under the names of an accelerator's allocator."""
    now, peak, ever, allocations, refused = _device.memory(_index(where))
    stats = {
        "num_alloc_retries": 0,
        "num_ooms": refused,
        "allocation.all.allocated": allocations,
    }
    for kind in ("allocated_bytes", "active_bytes", "reserved_bytes"):
        stats |= {
            f"{kind}.all.current": now,
            f"{kind}.all.peak": peak,
            f"{kind}.all.allocated": ever,
            f"{kind}.all.freed": ever - now,
        }
    return stats


def manual_seed(seed: int) -> None:
    """Seed the current core."""
    _device.default_generator(current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed every core."""
    for index in range(device_count()):
        _device.default_generator(index).manual_seed(seed)


def initial_seed() -> int:
    """Seed of the current core."""
    return int(_device.default_generator(current_device()).initial_seed())


def get_rng_state(where: Where = None) -> torch.Tensor:
    """Seed and offset of a core, as 16 bytes."""
    state: torch.Tensor = _device.default_generator(_index(where)).get_state()
    return state


def set_rng_state(state: torch.Tensor, where: Where = None) -> None:
    """Take up a state that :func:`get_rng_state` gave."""
    _device.default_generator(_index(where)).set_state(state.cpu())
