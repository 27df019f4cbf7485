"""Defects of the update: of what the optimizer has, does, and starts from."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.components.optimizer import default_adamw

from tests.defects import seams
from tests.defects.gradients import Q_NORM
from trn_validate.spec import RunSpec
from trn_validate.workload.capture import parameters, perturb
from trn_validate.workload.probe import ProbedTrainer

Config = ProbedTrainer.Config


def _adamw(config: Config, **changes: Any) -> None:
    rate = RunSpec.model_validate_json(config.spec).learning_rate
    config.optimizer = default_adamw(**{"lr": rate, **changes})


def left_out(config: Config) -> None:
    """A weight that the optimizer does not have."""

    def remove(optimizers: Any, model_parts: Any, parallel_dims: Any) -> None:
        for part in model_parts:
            weight = dict(part.named_parameters()).get(Q_NORM)
            for group in (g for optimizer in optimizers for g in optimizer.param_groups):
                group["params"] = [p for p in group["params"] if p is not weight]
                group["param_names"] = [n for n in group["param_names"] if n != Q_NORM]

    config.model_spec.post_optimizer_build_fn = remove


def no_weight_decay(config: Config) -> None:
    """A layout whose optimizer does not decay the weights."""
    _adamw(config, weight_decay=0.0)


def other_learning_rate(config: Config) -> None:
    """A layout whose learning rate is a hundredth larger."""
    rate = RunSpec.model_validate_json(config.spec).learning_rate
    _adamw(config, lr=1.01 * rate)


def other_momentum(config: Config) -> None:
    """A layout whose second moments forget at another rate."""
    _adamw(config, betas=(0.9, 0.999))


def other_seed(config: Config) -> Any:
    """One rank starts from weights of its own."""

    def draw(trainer: Any) -> None:
        if int(os.environ["RANK"]) != 1:
            return
        generator = torch.Generator().manual_seed(trainer.run_spec.seed + 1)
        for _, weight in parameters(trainer.model_parts):
            if weight.ndim > 1:
                local = weight.to_local() if isinstance(weight, DTensor) else weight
                local.detach().normal_(std=0.02, generator=generator)

    return seams.trainer(config, before_training=draw)


def seed_ignored(config: Config) -> None:
    """A layout that starts from weights of its own, since it does not load the seed."""
    config.checkpoint.enable = False


def control_too_noisy(config: Config) -> Any:
    """A control that is moved by the last place of a shorter type: it would allow anything."""

    def shake(trainer: Any) -> None:
        for signs in (1, 2, 3):
            perturb(trainer.model_parts, torch.bfloat16, signs)

    return seams.trainer(config, before_training=shake)


def control_not_moved(config: Config) -> None:
    """A control that is the reference again: it would allow nothing but what is exact."""
    spec = RunSpec.model_validate_json(config.spec)
    config.spec = spec.model_copy(update={"perturb": 0}).model_dump_json()


def head_too_large(config: Config) -> Any:
    """Random weights of the wrong size: the first loss is far from that of a blind guess."""

    def enlarge(trainer: Any) -> None:
        for name, weight in parameters(trainer.model_parts):
            if name == "lm_head.weight":
                weight.detach().mul_(8.0)

    return seams.trainer(config, before_training=enlarge)


def not_deterministic(config: Config) -> Any:
    """An operation that gives another last digit each time."""

    def disturb(trainer: Any) -> None:
        weight = seams.named(trainer, "lm_head.weight")
        assert weight is not None and weight.grad is not None
        gradient = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
        # Seeded, so that the defect itself is the same each time; the reference has none of it.
        generator = torch.Generator().manual_seed(trainer.step)
        gradient.mul_(1 + 1e-4 * torch.rand(gradient.shape, generator=generator))

    return seams.trainer(config, after_backward=disturb)
