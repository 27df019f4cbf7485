"""The kernels in torchtitan's models, put in by torchtitan's own override mechanism.

``override.imports`` takes each as ``trn_validate.kernels.overrides.<name>``:

===================  ====================  ==================================================
name                 replaces              by
===================  ====================  ==================================================
``rmsnorm``          RMSNorm               :func:`.rmsnorm.rmsnorm`
``swiglu``           FeedForward           its own products, with :func:`.swiglu.swiglu`
``expert_mlp``       GroupedExperts        :func:`.expert_mlp.expert_mlp`
``plain_experts``    GroupedExperts        :func:`.expert_mlp.reference`
===================  ====================  ==================================================

Stock GroupedExperts computes in bfloat16 whatever it is given, so ``plain_experts``, which like
``expert_mlp`` computes in the dtype of its rows, is what ``expert_mlp`` is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torchtitan.config.override import derive, override
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.models.common.nn_modules import RMSNorm

from trn_validate.errors import KernelError
from trn_validate.kernels import expert_mlp as experts
from trn_validate.kernels import rmsnorm as norm
from trn_validate.kernels import swiglu as gated

Placements = tuple[Placement, ...]


class KernelRMSNorm(RMSNorm):
    """RMSNorm by the kernel; same parameter, same name."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        """RMSNorm's own fields."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dim.

        Raises:
            KernelError: a norm without a weight, or a layout that splits what it sums over.
        """
        if self.weight is None:
            raise KernelError("RMSNorm without a weight", todo="The kernel needs one.")
        # As torch does it: under autocast a float32 weight meets bfloat16 rows.
        dtype = torch.promote_types(x.dtype, self.weight.dtype)
        return _normed(x.to(dtype), self.weight.to(dtype), self.eps).to(x.dtype)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    def local(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return norm.rmsnorm(one, other, eps)

    if not isinstance(x, DTensor) and not isinstance(weight, DTensor):
        return local(x, weight)
    rows = _splits_rows("rmsnorm", x)
    if not isinstance(weight, DTensor) or not all(one.is_replicate() for one in weight.placements):
        raise KernelError("rmsnorm of a DTensor by a weight that is split, or is none")
    # Ranks with other rows see other parts of the weight's gradient.
    parts = tuple(Partial() if one.is_shard() else Replicate() for one in rows)
    return _mapped(local, x, weight, rows, (rows, parts))


class KernelFeedForward(FeedForward):
    """FeedForward whose element-wise part is the kernel."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        """FeedForward's own fields."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., dim) in and out."""
        found: torch.Tensor = self.w2(gate_and_up(self.w1(x), self.w3(x)))
        return found


def gate_and_up(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up by the kernel, of tensors or of DTensors laid out alike.

    Raises:
        KernelError: DTensors laid out differently, or in partial sums.
    """
    return elementwise(gated.swiglu, gate, up)


def elementwise(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    one: torch.Tensor,
    other: torch.Tensor,
) -> torch.Tensor:
    """``function``, which takes each element by itself, of tensors or of DTensors laid out alike.

    A kernel is given plain tensors, so each rank calls it on its part.

    Raises:
        KernelError: DTensors laid out differently, or in partial sums.
    """
    if not isinstance(one, DTensor):
        return function(one, other)
    same = one.placements
    if not isinstance(other, DTensor) or other.placements != same or any(map(_partial, same)):
        raise KernelError("DTensors that are laid out differently, or in partial sums")
    return _mapped(function, one, other, same, (same, same))


def _partial(placement: Placement) -> bool:
    return placement.is_partial()


class PlainGroupedExperts(GroupedExperts):
    """Experts in plain torch, in the dtype of the rows."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        """GroupedExperts' own fields."""

    compute: Callable[..., torch.Tensor] = staticmethod(experts.reference)

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """(rows, dim) in and out; the argument names are those that torchtitan calls by."""
        weights = (
            one.to_local() if isinstance(one, DTensor) else one
            for one in (self.w1_EFD, self.w2_EDF, self.w3_EFD)
        )
        cast = (one.to(x_RD.dtype) for one in weights)
        return type(self).compute(x_RD, num_tokens_per_expert_E.to(torch.int32), *cast)


class KernelGroupedExperts(PlainGroupedExperts):
    """Experts by the kernels."""

    @dataclass(kw_only=True, slots=True)
    class Config(PlainGroupedExperts.Config):
        """GroupedExperts' own fields."""

    compute = staticmethod(experts.expert_mlp)


def _splits_rows(name: str, x: torch.Tensor) -> Placements:
    """How ``x`` is laid out, if it splits rows alone."""
    placements: Placements = x.placements if isinstance(x, DTensor) else ()
    fine = [
        one.is_replicate() or (isinstance(one, Shard) and one.dim % x.dim() < x.dim() - 1)
        for one in placements
    ]
    if not fine or not all(fine):
        raise KernelError(f"{name} of rows that are split, in partial sums, or no DTensor")
    return placements


def _mapped(
    function: Callable[..., torch.Tensor],
    one: torch.Tensor,
    other: torch.Tensor,
    out: Placements,
    gradients: tuple[Placements, Placements],
) -> torch.Tensor:
    """``function`` on the local parts of two DTensors; it keeps the shape of the first.

    Not torch's ``local_map``: in torch 2.14.1 it waits for a tensor whose collective still runs,
    as torchtitan's layouts leave them, and what comes of that has no gradient.
    """
    assert isinstance(one, DTensor) and isinstance(other, DTensor)
    local = function(
        one.to_local(grad_placements=gradients[0]), other.to_local(grad_placements=gradients[1])
    )
    strides = torch.empty(one.shape, device="meta").stride()
    found: torch.Tensor = DTensor.from_local(
        local, one.device_mesh, out, run_check=False, shape=one.shape, stride=strides
    )
    return found


@override(target=RMSNorm.Config, exact=True, description="RMSNorm by an NKI kernel")
def rmsnorm(config: RMSNorm.Config) -> KernelRMSNorm.Config:
    """Replace RMSNorm by :class:`KernelRMSNorm`."""
    replaced: KernelRMSNorm.Config = derive(config, KernelRMSNorm.Config)
    return replaced


@override(target=FeedForward.Config, exact=True, description="SwiGLU by an NKI kernel")
def swiglu(config: FeedForward.Config) -> KernelFeedForward.Config:
    """Replace FeedForward by :class:`KernelFeedForward`."""
    replaced: KernelFeedForward.Config = derive(config, KernelFeedForward.Config)
    return replaced


@override(target=GroupedExperts.Config, exact=True, description="experts by NKI kernels")
def expert_mlp(config: GroupedExperts.Config) -> KernelGroupedExperts.Config:
    """Replace GroupedExperts by :class:`KernelGroupedExperts`."""
    replaced: KernelGroupedExperts.Config = derive(config, KernelGroupedExperts.Config)
    return replaced


@override(target=GroupedExperts.Config, exact=True, description="experts in the dtype of rows")
def plain_experts(config: GroupedExperts.Config) -> PlainGroupedExperts.Config:
    """Replace GroupedExperts by :class:`PlainGroupedExperts`."""
    replaced: PlainGroupedExperts.Config = derive(config, PlainGroupedExperts.Config)
    return replaced
