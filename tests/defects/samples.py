"""Defects of the data: of which sample which rank sees at which step."""

from __future__ import annotations

import os
from typing import Any

from tests.defects import seams
from trn_validate.workload.probe import ProbedTrainer

Config = ProbedTrainer.Config


def same_on_two_ranks(config: Config) -> None:
    """Every data-parallel rank takes the first one's samples."""
    seams.loader(config, index=lambda loader, step, place: _index(loader, step, 0, place))


def swapped_between_steps(config: Config) -> None:
    """The first sample of steps 1 and 2 change places, so that their sum over the run is right."""

    def index(loader: Any, step: int, place: int) -> int:
        if step < 2 and place == 0 and loader.dp_rank == 0:
            step = 1 - step
        return _index(loader, step, loader.dp_rank, place)

    seams.loader(config, index=index)


def stuck(config: Config) -> None:
    """A loader that gives the first batch for ever."""
    seams.loader(config, index=lambda loader, step, place: _index(loader, 0, loader.dp_rank, place))


def split_inside_tp(config: Config) -> None:
    """A loader that shards by global rank: ranks that share samples do not see the same ones."""

    def index(loader: Any, step: int, place: int) -> int:
        shift = int(os.environ["RANK"]) % 2
        return _index(loader, step, loader.dp_rank, place) + shift

    seams.loader(config, index=index)


def ragged(config: Config) -> None:
    """The batch of step 3 has a row less, as the last one of a data set has."""
    whole = config.training.local_batch_size
    seams.loader(config, rows=lambda number: whole - 1 if number == 2 else whole)


def _index(loader: Any, step: int, dp_rank: int, place: int) -> int:
    """Sample at ``place`` of a rank's share, by the rule of the loader."""
    first: int = step * loader.config.global_batch_size + dp_rank * loader.per_step
    return first + place
