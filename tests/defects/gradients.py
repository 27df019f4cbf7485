"""Defects of the gradient: of how it is scaled, reduced, masked, accumulated and clipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import spmd_types as spmd
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torchtitan.models.common.decoder_sharding import dense_param_placement

from tests.defects import seams
from trn_validate.workload.probe import ProbedTrainer

Config = ProbedTrainer.Config

NORM = "layers.1.ffn_norm.weight"
Q_NORM = "layers.0.attention.q_norm.weight"
W2 = "layers.1.feed_forward.w2.weight"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def averaged_twice(config: Config) -> None:
    """FSDP averages a gradient that the loss has averaged already: it is too small by dp."""
    ways = config.parallelism.data_parallel_shard_degree

    def after(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(float(ways))

    seams.model(config, after=after)


def reduced_in_bfloat16(config: Config) -> None:
    """Gradients that are reduced in a shorter type than the plan's."""
    config.training.mixed_precision_reduce = "bfloat16"


def not_reduced(config: Config) -> Any:
    """One weight keeps the gradient of its own rank, so that the replicas drift apart."""
    own: list[torch.Tensor] = []

    def after(model: Any) -> None:
        norm = model.get_submodule(NORM.removesuffix(".weight"))

        def watch(module: Any, _: Any) -> None:
            # In forward this is the gathered weight, whose gradient nobody has reduced yet.
            module.weight.register_hook(lambda gradient: own.append(gradient.clone()))

        norm.register_forward_pre_hook(watch)

    def put_back(trainer: Any) -> None:
        parameter = seams.named(trainer, NORM)
        assert parameter is not None and parameter.grad is not None and own
        _local(parameter.grad).copy_(_local(own.pop()))

    seams.model(config, after=after)
    return seams.trainer(config, after_backward=put_back)


def norm_without_tp(config: Config) -> None:
    """A norm whose gradient is taken to be whole on each tp rank, which saw only its heads."""

    def before(model: Any) -> None:
        norm = model.get_submodule(Q_NORM.removesuffix(".weight"))
        sharding = norm._sharding_config
        # Its neighbours share the object.
        state = {**sharding.state_shardings, "weight": dense_param_placement(tp=spmd.I)}
        norm._sharding_config = replace(sharding, state_shardings=state)

    seams.model(config, before=before)


def frozen(config: Config) -> None:
    """A weight that takes no gradient."""

    def after(model: Any) -> None:
        model.get_parameter(Q_NORM).requires_grad_(False)

    seams.model(config, after=after)


def zeroed(config: Config) -> Any:
    """A weight behind a detach: its gradient is there, and nothing but zeros."""

    def clear(trainer: Any) -> None:
        parameter = seams.named(trainer, Q_NORM)
        assert parameter is not None and parameter.grad is not None
        parameter.grad.zero_()

    return seams.trainer(config, after_backward=clear)


def only_the_last_microbatch(config: Config) -> Any:
    """Gradients that are cleared between the micro-batches of one step."""

    def clear(trainer: Any) -> None:
        if not trainer.last_backward:
            trainer.optimizers.zero_grad()

    return seams.trainer(config, after_backward=clear)


def microbatch_skipped(config: Config) -> None:
    """A pipeline stage that sends nothing back for one microbatch of each step."""
    rows = config.training.local_batch_size
    calls = [0]

    def drop(module: Any, _: Any, output: torch.Tensor) -> None:
        calls[0] += 1
        if calls[0] % rows == 0:
            output.register_hook(torch.zeros_like)

    def after(model: Any) -> None:
        if model.tok_embeddings is not None:
            model.register_forward_hook(drop)

    seams.model(config, after=after)


def loss_by_cp(config: Config) -> Any:
    """A loss that is averaged over the cp ranks, each of which holds a part of the sum."""
    ways = config.parallelism.context_parallel_degree
    return seams.trainer(config, tokens=lambda trainer, labels, tokens: tokens * ways)


def tokens_of_one_rank(config: Config) -> Any:
    """A loss that is divided by the tokens of its own rank and then summed over the ranks."""

    def count(trainer: Any, labels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tokens, labels.numel() * trainer.gradient_accumulation_steps)

    return seams.trainer(config, tokens=count)


def positions_of_one_rank(config: Config) -> Any:
    """Each cp rank counts its positions from zero."""

    def count(trainer: Any, made: seams.Inputs) -> seams.Inputs:
        inputs, labels, others = made
        positions = others["positions"]
        own = torch.arange(positions.shape[1]).expand_as(positions).contiguous()
        return inputs, labels, {**others, "positions": own}

    return seams.trainer(config, inputs=count)


def clipped_on_one_rank(config: Config) -> None:
    """The second rank never reaches the norm at which the first one clips."""
    if dist.get_rank() == 1:
        config.training.max_norm = 1e9
