from __future__ import annotations

import importlib
from typing import get_args

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask
from torchtitan.models.common.attention import (
    FlexAttention,
    ScaledDotProductAttention,
    get_causal_mask_mod,
    get_document_mask_mod,
    get_efficient_causal_mask_mod_for_packed_document,
)

from trn_validate.spec import ATTENTION
from trn_validate.workload.attention import OVERRIDES, DenseMaskAttention, causal, dense_mask

LENGTH, HEADS, KV_HEADS, HEAD_DIM = 160, 4, 2, 8
DOCUMENTS = [[0, 40, 41], [0, 159]]
"""First positions of the documents of each of two rows."""


def positions(starts: list[list[int]]) -> torch.Tensor:
    """Positions that count from zero in each document, (batch, length)."""
    rows = []
    for row in starts:
        ends = [*row[1:], LENGTH]
        rows.append(torch.cat([torch.arange(end - s) for s, end in zip(row, ends, strict=True)]))
    return torch.stack(rows)


def allowed(starts: list[list[int]]) -> torch.Tensor:
    """What a causal mask within documents lets through, written out by loops."""
    mask = torch.zeros(len(starts), LENGTH, LENGTH, dtype=torch.bool)
    for row, firsts in enumerate(starts):
        for query in range(LENGTH):
            begin = max(first for first in firsts if first <= query)
            mask[row, query, begin : query + 1] = True
    return mask


def random(heads: int, seed: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, LENGTH, heads, HEAD_DIM)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention by its formula; every key head serves a group of query heads."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    scores = scores.masked_fill(~mask[:, None], -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def block_mask(starts: list[list[int]], *, efficient: bool = False) -> BlockMask:
    where = positions(starts)
    documents = (
        get_efficient_causal_mask_mod_for_packed_document(where)
        if efficient
        else get_document_mask_mod(where)
    )
    mask_mod = and_masks(get_causal_mask_mod(), documents)
    return create_block_mask(mask_mod, len(starts), None, LENGTH, LENGTH, device="cpu")


def built() -> DenseMaskAttention:
    made = DenseMaskAttention.Config().build()
    assert type(made) is DenseMaskAttention
    return made


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert found.dtype == torch.float64
    assert torch.isfinite(found).all()
    error = float((found - expected).abs().max())
    assert error <= 1e-12, error


@pytest.mark.parametrize("efficient", [False, True], ids=["plain", "efficient"])
@pytest.mark.parametrize(
    "starts", [[[0], [0]], DOCUMENTS, [[0, 1, 2], [0, 128]], [[0, 80]]], ids=str
)
def test_the_dense_mask_gives_causal_attention_within_documents(
    starts: list[list[int]], efficient: bool
) -> None:
    q, k, v = (random(heads, n, len(starts)) for n, heads in enumerate([HEADS] * 3))
    found = built()(q, k, v, attention_masks=block_mask(starts, efficient=efficient))
    assert_close(found, naive(q, k, v, allowed(starts), HEAD_DIM**-0.5))


def test_key_heads_are_shared_by_groups_of_query_heads() -> None:
    q, k, v = random(HEADS, 0), random(KV_HEADS, 1), random(KV_HEADS, 2)
    found = built()(q, k, v, attention_masks=block_mask(DOCUMENTS), enable_gqa=True)
    assert_close(found, naive(q, k, v, allowed(DOCUMENTS), HEAD_DIM**-0.5))


def test_a_scale_that_is_given_is_used() -> None:
    q, k, v = random(HEADS, 0), random(HEADS, 1), random(HEADS, 2)
    found = built()(q, k, v, attention_masks=block_mask(DOCUMENTS), scale=0.5)
    assert_close(found, naive(q, k, v, allowed(DOCUMENTS), 0.5))


def test_gradients_are_those_of_the_formula() -> None:
    mask = block_mask(DOCUMENTS)
    q, k, v = (random(heads, n).requires_grad_() for n, heads in enumerate([4, 2, 2]))
    weight = random(HEADS, 9)
    out = built()(q, k, v, attention_masks=mask, enable_gqa=True)
    found = torch.autograd.grad((out * weight).sum(), (q, k, v))
    reference = naive(q, k, v, allowed(DOCUMENTS), HEAD_DIM**-0.5)
    expected = torch.autograd.grad((reference * weight).sum(), (q, k, v))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_a_token_does_not_see_another_document_or_what_comes_later() -> None:
    mask = block_mask(DOCUMENTS)
    q, k, v = random(HEADS, 0), random(HEADS, 1), random(HEADS, 2)
    before = built()(q, k, v, attention_masks=mask)
    changed = v.clone()
    changed[0, 40] += 1.0  # a document of its own
    after = built()(q, k, changed, attention_masks=mask)
    differs = (after != before).any(-1).any(-1)
    assert differs.nonzero().tolist() == [[0, 40]]


def test_every_choice_of_a_plan_has_an_override_or_none() -> None:
    assert set(OVERRIDES) == set(get_args(ATTENTION))
    assert OVERRIDES["stock"] is None


@pytest.mark.parametrize("choice", ["dense_mask", "causal"])
def test_an_override_is_a_function_that_can_be_imported(choice: str) -> None:
    module, _, name = str(OVERRIDES[choice]).rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_dense_mask_keeps_the_fields_of_what_it_replaces() -> None:
    replaced = dense_mask(FlexAttention.Config(block_size=64, kernel_options={"a": 1}))
    assert isinstance(replaced, DenseMaskAttention.Config)
    assert (replaced.block_size, replaced.kernel_options) == (64, {"a": 1})


def test_causal_is_torchtitans_own_attention() -> None:
    replaced = causal(FlexAttention.Config())
    assert type(replaced) is ScaledDotProductAttention.Config


def test_the_dense_mask_is_still_what_torchtitan_shards_and_masks() -> None:
    assert issubclass(DenseMaskAttention, FlexAttention)
    assert issubclass(DenseMaskAttention.Config, FlexAttention.Config)
