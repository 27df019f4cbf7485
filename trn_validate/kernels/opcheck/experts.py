"""The expert MLP as a function of float tensors alone, which is what op checks call."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trn_validate.kernels import expert_mlp


def op(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """The kernel; ``x`` (rows, D) and three ``weights`` of 3 experts."""
    return _unevenly(expert_mlp.expert_mlp, x, *weights)


def reference(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Plain torch on the same rows."""
    return _unevenly(expert_mlp.reference, x, *weights)


def _unevenly(
    function: Callable[..., torch.Tensor], x: torch.Tensor, *weights: torch.Tensor
) -> torch.Tensor:
    """``function`` with rows given out unevenly: the second of three experts has none."""
    rows = x.shape[0]
    first = (2 * rows + 2) // 3
    return function(x, torch.tensor([first, 0, rows - first], device=x.device), *weights)
