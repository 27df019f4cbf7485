"""Attention by the plan, put in by torchtitan's own override mechanism.

``stock`` FlexAttention has no backward on the CPU and is refused on a neuron device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention

_HERE = "trn_validate.workload.attention"

OVERRIDES: dict[str, str | None] = {
    "dense_mask": f"{_HERE}.dense_mask",
    "causal": f"{_HERE}.causal",
    "stock": None,
}
"""Override target of each choice, as torchtitan's ``override.imports`` takes it."""


class DenseMaskAttention(FlexAttention):
    """Scaled dot product attention with the block mask written out.

    Stays a FlexAttention, so that the trainer still builds the document mask and context
    parallelism still shards it. Argument names are those that torchtitan shards by.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        """FlexAttention's own fields."""

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: BlockMask,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Attend; (batch, length, heads, head dim) in and out."""
        q, k, v = (t.transpose(1, 2) for t in (q_BLNH, k_BLNH, v_BLNH))
        mask = _dense(attention_masks, q.shape[0], q.shape[2], k.shape[2], q.device)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
        )
        return out.transpose(1, 2)


def _dense(
    mask: BlockMask, batch: int, queries: int, keys: int, device: torch.device
) -> torch.Tensor:
    """Boolean (batch, 1, queries, keys): what ``mask`` lets through."""
    b = torch.arange(batch, device=device).view(batch, 1, 1)
    q = torch.arange(queries, device=device).view(1, queries, 1)
    k = torch.arange(keys, device=device).view(1, 1, keys)
    allowed: torch.Tensor = mask.mask_mod(b, torch.zeros_like(b), q, k)
    return allowed.expand(batch, queries, keys).unsqueeze(1)


@override(target=FlexAttention.Config, exact=True, description="attention with a dense mask")
def dense_mask(config: FlexAttention.Config) -> DenseMaskAttention.Config:
    """Replace FlexAttention by :class:`DenseMaskAttention`."""
    replaced: DenseMaskAttention.Config = derive(config, DenseMaskAttention.Config)
    return replaced


@override(target=FlexAttention.Config, exact=True, description="causal attention, one document")
def causal(config: FlexAttention.Config) -> ScaledDotProductAttention.Config:
    """Replace FlexAttention by torchtitan's own attention, which knows no documents and no cp."""
    return derive(config, ScaledDotProductAttention.Config)
