"""Defects of a compiled run: it compiles again, or runs eagerly and says nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tests.defects import seams
from trn_validate.workload.probe import ProbedTrainer

Config = ProbedTrainer.Config


def compiled_again(config: Config) -> Any:
    """A constant of a block that changes before step 4: invisible in the numbers, and guarded."""

    def change(trainer: Any) -> None:
        if trainer.step == 4:
            for part in trainer.model_parts:
                for block in part.layers.values():
                    block.ffn_norm.eps *= 1 + 1e-9

    return seams.trainer(config, before_step=change)


def eager_from_step_3(config: Config) -> Any:
    """From step 3 on what was compiled runs eagerly: right, slow, and silent."""

    def stance(trainer: Any) -> AbstractContextManager[Any]:
        if trainer.step < 3:
            return nullcontext()
        held: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return held

    return seams.trainer(config, around=stance)


def block_left_out(config: Config) -> None:
    """A block that is never compiled."""

    def after(model: Any) -> None:
        model.layers["1"]._compiled_call_impl = None

    seams.model(config, after=after)


def graph_broken(config: Config) -> None:
    """A loss with something in it that Dynamo cannot trace."""
    seams.loss(config, torch._dynamo.graph_break)


def frame_given_up(config: Config) -> None:
    """A loss that Dynamo declines to compile, and runs as it is."""
    seams.loss(config, torch._dynamo.skip_frame)
