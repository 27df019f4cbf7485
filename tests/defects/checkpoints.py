"""Defects of saving, resuming and exporting: of what is lost, stale, rounded or missing."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tests.defects import seams
from trn_validate.workload.probe import ProbedTrainer

Config = ProbedTrainer.Config

_WEIGHT = "layers.1.feed_forward.w2.weight"


def data_position_lost(config: Config) -> None:
    """A resume that starts the data afresh."""
    config.checkpoint.exclude_from_loading = ["dataloader"]


def scheduler_lost(config: Config) -> None:
    """A resume that starts the schedule of the learning rate afresh."""
    config.checkpoint.exclude_from_loading = ["lr_scheduler"]


def second_moments_lost(config: Config) -> None:
    """A resume that has the first moments and not the second ones."""

    def clear(manager: Any) -> None:
        for optimizer in manager.states["optimizer"]:
            for state in optimizer.state.values():
                state["exp_avg_sq"].zero_()

    seams.checkpoints(config, loaded=clear)


def rng_lost(config: Config) -> None:
    """A resume whose random numbers begin somewhere else."""
    seams.checkpoints(config, loaded=lambda manager: torch.manual_seed(7))


def stale_shard(config: Config) -> Any:
    """A checkpoint with one tensor of an earlier step: copied aside before the update was done."""
    earlier: dict[str, torch.Tensor] = {}

    def keep(trainer: Any) -> None:
        weight = seams.named(trainer, _WEIGHT)
        assert weight is not None
        earlier[_WEIGHT] = weight.detach().clone()

    def replace(manager: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, **{name: earlier[name] for name in earlier if name in state}}

    seams.checkpoints(config, saving=replace)
    return seams.trainer(config, after_backward=keep)


def saved_in_bfloat16(config: Config) -> None:
    """A checkpoint whose weights were rounded on their way, and read back as what they were."""

    def shorten(manager: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {name: _rounded(value) for name, value in state.items()}

    seams.checkpoints(config, saving=shorten)


def _rounded(value: Any) -> Any:
    if isinstance(value, torch.Tensor | DTensor) and value.is_floating_point():
        return value.to(torch.bfloat16).to(value.dtype)
    return value


def nothing_saved(config: Config) -> None:
    """A run whose interval is never reached."""
    config.checkpoint.load_only = True


def schedule_left_out(config: Config) -> None:
    """A checkpoint without the schedule of the learning rate."""

    def drop(manager: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state.items() if name != "lr_scheduler"}

    seams.checkpoints(config, saving=drop)


def exported_in_bfloat16(config: Config) -> None:
    """An export in a shorter type than the weights have."""
    config.checkpoint.export_dtype = "bfloat16"


def key_missing(config: Config) -> None:
    """An export without one weight, which the adapter does not know."""
    adapter = config.model_spec.state_dict_adapter

    def build(*arguments: Any) -> Any:
        made = adapter(*arguments)
        del made.from_hf_map["model.norm.weight"]
        return made

    config.model_spec.state_dict_adapter = build


def damage_accepted(config: Config) -> None:
    """A trainer that takes a checkpoint which it cannot read for none at all."""
    seams.checkpoints(config, tolerant=True)
