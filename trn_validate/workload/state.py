"""Digests of what a resumed run must have again, exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def state_digests(trainer: Any) -> dict[str, str]:
    """sha256 over this rank's share of model, optimizer, scheduler, data and RNG state."""
    model = {
        f"{part}.{name}": value
        for part, module in enumerate(trainer.model_parts)
        for name, value in module.state_dict().items()
    }
    return {
        "model": digest(model),
        # Not the container's state_dict: that one takes a step to fill an empty state, and
        # so changes what it looks at.
        "optimizer": digest(
            {
                str(place): optimizer.state_dict()
                for place, optimizer in enumerate(trainer.optimizers)
            }
        ),
        "scheduler": digest(trainer.lr_schedulers.state_dict()),
        "data": digest(trainer.dataloader.state_dict()),
        "rng": digest({"torch": torch.get_rng_state()}),
    }


def digest(state: Mapping[str, Any]) -> str:
    """sha256 of a nested state; keys, dtypes, shapes and every bit count."""
    result = hashlib.sha256()
    for path, value in _leaves("", state):
        for part in (path.encode(), _bytes(value)):
            # Its length first, so that no two states run together into the same bytes.
            result.update(len(part).to_bytes(8, "big"))
            result.update(part)
    return result.hexdigest()


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key in sorted(value, key=str):
            yield from _leaves(f"{path}/{key}", value[key])
    elif isinstance(value, list | tuple):
        if not value:
            yield path, []
        for position, entry in enumerate(value):
            yield from _leaves(f"{path}/{position}", entry)
    else:
        yield path, value


def _bytes(value: Any) -> bytes:
    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        header = f"{plain.dtype}{tuple(plain.shape)}".encode()
        return header + plain.flatten().view(torch.uint8).numpy().tobytes()
    return repr(value).encode()
