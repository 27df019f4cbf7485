"""Faults in the text of kernels: one function of a kernel is put in another's place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.defects.kernels.mutant import Mutant
from tests.kernels.ours import EXPERT_MLP, RMSNORM, SWIGLU
from trn_validate.kernels import expert_mlp, rmsnorm, swiglu
from trn_validate.kernels.expert_blocks import Blocks, lay_out
from trn_validate.kernels.namespace import nisa, nl
from trn_validate.kernels.opcheck.subject import Subject
from trn_validate.kernels.tiles import ROWS, load, piece, pieces


def swapped_outputs(patch: pytest.MonkeyPatch) -> Subject:
    right = swiglu.gradients
    patch.setattr(swiglu, "gradients", lambda *given: right(*given)[::-1])
    return SWIGLU


def wrong_input(patch: pytest.MonkeyPatch) -> Subject:
    right = swiglu.gradients

    def wrong(grad: Any, gate: Any, up: Any, dtype: Any) -> Any:
        return right(grad, up, up, dtype)[0], right(grad, gate, up, dtype)[1]

    patch.setattr(swiglu, "gradients", wrong)
    return SWIGLU


def no_accumulation(patch: pytest.MonkeyPatch) -> Subject:
    def wrong(dw: Any, grad: Any, x: Any, r: Any) -> None:
        rows, columns = x.shape
        total = nl.ndarray((1, columns), dtype=nl.float32, buffer=nl.psum)
        for block in range(pieces(rows, ROWS)):
            part = nl.ds(block * ROWS, piece(block, rows, ROWS))
            both = rmsnorm.product(load(grad[part]), load(x[part]))
            nisa.nc_matmul(dst=total, stationary=load(r[part]), moving=both, accumulate=False)
        out = nl.ndarray((1, columns), dtype=dw.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=total)
        nisa.dma_copy(dst=dw, src=out)

    patch.setattr(rmsnorm, "weight_columns", wrong)
    return RMSNORM


def last_tile_skipped(patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(rmsnorm, "pieces", lambda total, size: max(1, total // size))
    return RMSNORM


def bfloat16_sums(patch: pytest.MonkeyPatch) -> Subject:
    def wrong(one: Any, other: Any, others: tuple[Any, ...] = ()) -> Any:
        rows, columns = one.shape
        low = nl.ndarray((rows, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=low, value=0.0)
        for chunk in range(pieces(columns, 16)):
            part = nl.ds(chunk * 16, piece(chunk, columns, 16))
            both = rmsnorm.product(one[:, part], other[:, part])
            for factor in others:
                both = rmsnorm.product(both, factor[0:rows, part])
            added = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=added, op=nl.add, data=both, axis=1, keepdims=True)
            nisa.tensor_tensor(dst=low, data1=low, data2=added, op=nl.add)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=total, src=low)
        return total

    patch.setattr(rmsnorm, "row_sums", wrong)
    return RMSNORM


def second_core(patch: pytest.MonkeyPatch) -> Subject:
    right = rmsnorm.forward_block

    def wrong(y: Any, r: Any, x: Any, spread: Any, eps: float) -> None:
        right(y, r, x, spread, eps + 0.01 * nl.program_id(0))

    patch.setattr(rmsnorm, "forward_block", wrong)
    return RMSNORM


def neighbour(patch: pytest.MonkeyPatch) -> Subject:
    def wrong(counts: torch.Tensor, rows: int) -> Blocks:
        right = lay_out(counts, rows)
        return replace(right, expert=(right.expert + 1) % len(counts))

    patch.setattr(expert_mlp, "lay_out", wrong)
    return EXPERT_MLP


def restart_forgotten(patch: pytest.MonkeyPatch) -> Subject:
    def wrong(counts: torch.Tensor, rows: int) -> Blocks:
        right = lay_out(counts, rows)
        return replace(right, more=torch.ones_like(right.more))

    patch.setattr(expert_mlp, "lay_out", wrong)
    return EXPERT_MLP


IN_KERNELS = (
    Mutant(
        "outputs swapped",
        "two gradients of one shape change places",
        swapped_outputs,
        "accuracy",
        "float32, ragged: largest error",
    ),
    Mutant(
        "gradient of the wrong input",
        "the slope is taken at another input",
        wrong_input,
        "differences",
        "float32: gradients that no difference gives",
    ),
    Mutant(
        "no accumulation over tiles",
        "the last block of rows overwrites the sum",
        no_accumulation,
        "accuracy",
        "float32, many rows, one core: largest error",
    ),
    Mutant(
        "last tile skipped",
        "a tile that is not full is left out",
        last_tile_skipped,
        "conduct",
        "float32: degenerate outputs",
    ),
    Mutant(
        "bfloat16 accumulation",
        "sums are kept in bfloat16",
        bfloat16_sums,
        "accuracy",
        "bfloat16, ragged: frobenius error",
    ),
    Mutant(
        "second core",
        "only what the second core computes is wrong",
        second_core,
        "accuracy",
        "float32, many rows, two cores: largest error",
    ),
    Mutant(
        "weights of the neighbour",
        "rows meet the weights of another expert",
        neighbour,
        "accuracy",
        "float32, ragged: largest error",
    ),
    Mutant(
        "sum runs on",
        "the gradient of an expert holds that of those before it",
        restart_forgotten,
        "accuracy",
        "float32, ragged: largest error",
    ),
)
