"""Our kernels, as they are checked."""

from __future__ import annotations

from functools import partial

import torch

from trn_validate.kernels import expert_mlp, rmsnorm, swiglu
from trn_validate.kernels.opcheck.subject import Function, Subject

_EPS = 1e-6
"""Of Qwen3 (torchtitan models/qwen3)."""


def _counted(function: Function) -> Function:
    """``function`` of experts, with rows given out unevenly: the second of three has none."""

    def counted(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        first = (2 * rows + 2) // 3
        return function(x, torch.tensor([first, 0, rows - first], device=x.device), *weights)

    return counted


RMSNORM = Subject(
    name="rmsnorm",
    function=partial(rmsnorm.rmsnorm, eps=_EPS),
    reference=partial(rmsnorm.reference, eps=_EPS),
    shapes={
        "ragged": ((130, 300), (300,)),
        "one row": ((1, 40), (40,)),
        "many rows": ((300, 600), (600,)),
        "small": ((5, 9), (9,)),
    },
    launches=rmsnorm.LAUNCHES,
    centred=(1,),
)
SWIGLU = Subject(
    name="swiglu",
    function=swiglu.swiglu,
    reference=swiglu.reference,
    shapes={
        "ragged": ((130, 300), (130, 300)),
        "one row": ((1, 40), (1, 40)),
        "many rows": ((300, 600), (300, 600)),
        "small": ((5, 9), (5, 9)),
    },
    launches=swiglu.LAUNCHES,
    scaled=(0, 1),
    # silu of less than -88 is 0 in float32, and of more than 88 the gate itself.
    large=30.0,
)


def _experts(rows: int, wide: int, hidden: int) -> tuple[tuple[int, ...], ...]:
    return (rows, wide), (3, hidden, wide), (3, wide, hidden), (3, hidden, wide)


EXPERT_MLP = Subject(
    name="expert_mlp",
    function=_counted(expert_mlp.expert_mlp),
    reference=_counted(expert_mlp.reference),
    shapes={
        "ragged": _experts(130, 140, 150),
        # Of few numbers the ratio is chance: of 20 it reached 2.1 in one of 20 seeds.
        "one row": _experts(1, 400, 500),
        "many rows": _experts(300, 72, 88),
        "small": _experts(5, 6, 7),
    },
    launches=expert_mlp.LAUNCHES,
    depth=500,
    large=10.0,
)
SUBJECTS = {one.name: one for one in (RMSNORM, SWIGLU, EXPERT_MLP)}
