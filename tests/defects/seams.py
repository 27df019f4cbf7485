"""Where defects go in: torchtitan's components, each with one place that a defect may fill.

A component is a class with a nested ``Config``, and the config builds the class that declares
it. So a defect is a config of one of these classes with a function in the field of its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss

from trn_validate.workload.capture import parameters
from trn_validate.workload.data import Batch, InvariantDataLoader
from trn_validate.workload.probe import ProbedTrainer

_Config = TypeVar("_Config")
Inputs = tuple[torch.Tensor, torch.Tensor, dict[str, Any]]


def rebuilt(owner: Any, config: Any, **changes: Any) -> Any:
    """The same config with some fields changed, so that it builds ``owner``."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return owner.Config(**(values | changes))


class Trainer(ProbedTrainer):
    """A trainer with places around loading, forward and backward."""

    @dataclass(kw_only=True, slots=True)
    class Config(ProbedTrainer.Config):
        """What is done at each place."""

        before_training: Callable[[Any], None] | None = None
        """After the weights were loaded and before anything of them is recorded."""
        inputs: Callable[[Any, Inputs], Inputs] | None = None
        """What enters the model: tokens, labels and the rest, as cp has split them."""
        tokens: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        """What the sum of the losses is divided by, from the labels and the right number."""
        after_backward: Callable[[Any], None] | None = None
        """After each backward, when its gradients are reduced and not yet clipped."""
        before_step: Callable[[Any], None] | None = None
        around: Callable[[Any], AbstractContextManager[Any]] | None = None
        """Held during forward and backward."""

    def train_step(self, data_iterator: Any) -> None:
        """The parent's, with the places before it."""
        if not self.started and self.config.before_training is not None:
            self.config.before_training(self)
        if self.config.before_step is not None:
            self.config.before_step(self)
        super().train_step(data_iterator)

    def post_dataloading_process(self, *arguments: Any) -> Inputs:
        """The parent's, with the place after it."""
        made: Inputs = super().post_dataloading_process(*arguments)
        return self.config.inputs(self, made) if self.config.inputs is not None else made

    def _forward_backward_body(
        self, inputs: Any, labels: Any, global_valid_tokens: Any, extra_kwargs: Any
    ) -> torch.Tensor:
        if self.config.tokens is not None:
            global_valid_tokens = self.config.tokens(self, labels, global_valid_tokens)
        with self.config.around(self) if self.config.around is not None else nullcontext():
            loss: torch.Tensor = super()._forward_backward_body(
                inputs, labels, global_valid_tokens, extra_kwargs
            )
        if self.config.after_backward is not None:
            self.config.after_backward(self)
        return loss

    def pp_forward_backward_step(self, **arguments: Any) -> torch.Tensor:
        """The parent's, with the place after it: all microbatches of the step were in it."""
        loss: torch.Tensor = super().pp_forward_backward_step(**arguments)
        if self.config.after_backward is not None:
            self.config.after_backward(self)
        return loss

    @property
    def last_backward(self) -> bool:
        """Whether the step has no further backward, so that its gradients are whole."""
        return len(self.watched.losses) + 1 == self.gradient_accumulation_steps


def trainer(config: ProbedTrainer.Config, **places: Any) -> Any:
    """The config of a trainer with these places filled."""
    return rebuilt(Trainer, config, **places)


class Checkpoints(CheckpointManager):
    """A checkpoint manager with places before it writes and after it has read."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """What is done at each place."""

        saving: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = None
        """What is written, from what should be."""
        loaded: Callable[[Any], None] | None = None
        tolerant: bool = False
        """Whether a checkpoint that cannot be read is passed over."""

    def __init__(self, config: Config, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.config = config

    def dcp_save(self, state_dict: dict[str, Any], **arguments: Any) -> Any:
        """The parent's, with the place before it."""
        if self.config.saving is not None:
            state_dict = self.config.saving(self, state_dict)
        return super().dcp_save(state_dict, **arguments)

    def _load(self, step: int = -1) -> bool:
        try:
            found: bool = super()._load(step)
        except BaseException:  # what torch raises for a broken checkpoint is no Exception
            if not self.config.tolerant:
                raise
            return False
        if self.config.loaded is not None:
            self.config.loaded(self)
        return found


def checkpoints(config: ProbedTrainer.Config, **places: Any) -> None:
    """Put a checkpoint manager with these places filled into the config."""
    config.checkpoint = rebuilt(Checkpoints, config.checkpoint, **places)


class Loader(InvariantDataLoader):
    """A loader with places for its choice of samples and for the size of its batches."""

    @dataclass(kw_only=True, slots=True)
    class Config(InvariantDataLoader.Config):
        """What is done at each place."""

        index: Callable[[Any, int, int], int] | None = None
        """The sample that comes next, from the step and the place in this rank's share of it."""
        rows: Callable[[int], int] | None = None
        """How many rows of the batch of a step, counted from 0, are handed on."""

    def __iter__(self) -> Iterator[Batch]:
        """The parent's batches, with the place after each."""
        for number, (inputs, labels) in enumerate(super().__iter__()):
            rows = self.config.rows(number) if self.config.rows is not None else len(labels)
            yield {name: value[:rows] for name, value in inputs.items()}, labels[:rows]

    def _next_index(self) -> int:
        step, place = divmod(self.emitted, self.per_step)
        right = super()._next_index()
        return self.config.index(self, step, place) if self.config.index is not None else right


def loader(config: ProbedTrainer.Config, **places: Any) -> None:
    """Put a loader with these places filled into the config."""
    config.dataloader = rebuilt(Loader, config.dataloader, **places)


class Loss(CrossEntropyLoss):
    """A loss with a place inside of what is compiled."""

    @dataclass(kw_only=True, slots=True)
    class Config(CrossEntropyLoss.Config):
        """What is done at the place."""

        inside: Callable[[], None]

    def __init__(self, config: Config, *, compile_config: Any = None) -> None:
        super().__init__(config)
        plain, inside = self.fn, config.inside

        def opened(*arguments: Any, **keywords: Any) -> torch.Tensor:
            inside()
            loss: torch.Tensor = plain(*arguments, **keywords)
            return loss

        self.fn = opened
        self._maybe_compile(compile_config)


def loss(config: ProbedTrainer.Config, inside: Callable[[], None]) -> None:
    """Put a loss that does something inside of what is compiled into the config."""
    config.loss.loss_fn = rebuilt(Loss, config.loss.loss_fn, inside=inside)


def model(
    config: ProbedTrainer.Config,
    *,
    before: Callable[[Any], None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> None:
    """Change the model before or after torchtitan lays it over the ranks."""
    parallelize = config.model_spec.parallelize_fn

    def parallelized(module: Any, **arguments: Any) -> Any:
        if before is not None:
            before(module)
        module = parallelize(module, **arguments)
        if after is not None:
            after(module)
        return module

    config.model_spec.parallelize_fn = parallelized


def named(owner: Any, name: str) -> torch.nn.Parameter | None:
    """The parameter of that name of a trainer; None where another pipeline stage has it."""
    return dict(parameters(owner.model_parts)).get(name)
