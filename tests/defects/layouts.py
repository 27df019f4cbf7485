"""Defects of what was launched: fewer steps, another layout, another model."""

from __future__ import annotations

from trn_validate.workload.probe import ProbedTrainer

Config = ProbedTrainer.Config


def one_step_short(config: Config) -> None:
    """A run that ends before its last step, with nothing to complain about."""
    config.training.steps -= 1


def tp_ignored(config: Config) -> None:
    """A layout that is asked for and not built: what was tp becomes more data parallelism."""
    ways = config.parallelism.tensor_parallel_degree
    config.parallelism.tensor_parallel_degree = 1
    config.parallelism.data_parallel_shard_degree *= ways
    config.training.local_batch_size //= ways


def layer_missing(config: Config) -> None:
    """A model with a layer less; the checkpoint has the other one and nobody asks."""
    config.model_spec.model.layers = config.model_spec.model.layers[:-1]
