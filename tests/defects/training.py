"""Defects of a training run, injected through torchtitan's own seams.

Each function is a hook: it takes the trainer's config and changes it or returns another one.
They run inside the ranks, so this module imports torchtitan.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.optimizer import default_adamw

from tests.defects.seams import rebuilt
from trn_validate.workload.probe import ProbedTrainer


class _NotFinite(ProbedTrainer):
    @dataclass(kw_only=True, slots=True)
    class Config(ProbedTrainer.Config):
        """The parent's fields."""

    def forward_backward_step(self, **arguments: Any) -> torch.Tensor:
        """Give a loss that is not a number from step 3 on."""
        loss = super().forward_backward_step(**arguments)
        return loss * float("nan") if self.step == 3 else loss


class _Hanging(ProbedTrainer):
    @dataclass(kw_only=True, slots=True)
    class Config(ProbedTrainer.Config):
        """The parent's fields."""

    def train_step(self, data_iterator: Any) -> None:
        """Rank 1 never comes to step 3."""
        if self.step == 3 and torch.distributed.get_rank() == 1:
            time.sleep(3600)
        super().train_step(data_iterator)


class _Killed(ProbedTrainer):
    @dataclass(kw_only=True, slots=True)
    class Config(ProbedTrainer.Config):
        """The parent's fields."""

    def train_step(self, data_iterator: Any) -> None:
        """Rank 1 is killed before step 3, as the kernel does when memory runs out."""
        if self.step == 3 and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().train_step(data_iterator)


class _Orphaned(ProbedTrainer):
    @dataclass(kw_only=True, slots=True)
    class Config(ProbedTrainer.Config):
        """The parent's fields."""

    def train_step(self, data_iterator: Any) -> None:
        """Torchrun is killed before step 3; its ranks know nothing of it."""
        if self.step == 3 and torch.distributed.get_rank() == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        super().train_step(data_iterator)


def not_finite(config: ProbedTrainer.Config) -> Any:
    """A loss that is NaN at step 3."""
    return rebuilt(_NotFinite, config)


def hanging(config: ProbedTrainer.Config) -> Any:
    """A rank that waits for ever while the others are in a collective."""
    return rebuilt(_Hanging, config)


def killed(config: ProbedTrainer.Config) -> Any:
    """A rank that is killed from outside."""
    return rebuilt(_Killed, config)


def orphaned(config: ProbedTrainer.Config) -> Any:
    """A launcher that is killed while its ranks live."""
    return rebuilt(_Orphaned, config)


def learning_rate_zero(config: ProbedTrainer.Config) -> None:
    """An optimizer that changes nothing: every loss is finite, and none falls."""
    config.optimizer = default_adamw(lr=0.0)


def larger_batch(config: ProbedTrainer.Config) -> None:
    """A layout that keeps the local batch, so that the global one follows the dp degree."""
    config.training.local_batch_size *= 2
    config.training.global_batch_size *= 2
    config.dataloader.global_batch_size *= 2


def optimizer_lost(config: ProbedTrainer.Config) -> None:
    """A resume that takes the weights and starts the optimizer afresh."""
    config.checkpoint.exclude_from_loading = ["optimizer"]
