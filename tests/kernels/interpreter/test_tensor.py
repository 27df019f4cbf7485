"""Views, and what is refused on a tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels.interpreter.programs import (
    Tensor,
    absent,
    assert_says,
    loaded,
    refusal,
    run,
    stored,
    tile,
)
from trn_validate.kernels.interpreter import isa as nisa
from trn_validate.kernels.interpreter import language as nl


def chip() -> Tensor:
    return nl.ndarray((64, 8, 4), nl.float32, name="t")


def outside() -> Tensor:
    return nl.ndarray((4, 8), nl.float32, nl.private_hbm, name="h")


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "add": lambda t: t + t,
    "add from the left": lambda t: 1.0 + t,
    "add in place": lambda t: operator.iadd(t, 1.0),
    "multiply": lambda t: t * 2,
    "divide": lambda t: t / 2,
    "matmul": lambda t: t @ t,
    "negate": operator.neg,
    "compare": lambda t: t < 1,
    "equal": lambda t: t == t,
    "truth": bool,
    "number": float,
    "length": len,
    "iterate": list,
    "array": np.asarray,
    "assign": lambda t: operator.setitem(t, 0, 1.0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_no_python_operator_works_on_a_tensor(name: str) -> None:
    parts = ("no Python operators on tensors", "t (64, 8, 4) float32 in sbuf", "__")
    assert absent(parts, refusal(lambda: OPERATORS[name](chip()))) == []


BOUNDS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a slice past the end": (lambda: chip()[:, 4:9], "t (64, 8, 4)", "4:9 of dim 1, which has 8"),
    "ds past the end": (
        lambda: chip()[nl.ds(60, 8)],
        "t (64, 8, 4)",
        "60:68 of dim 0, which has 64",
    ),
    "an index past the end": (lambda: outside()[4], "h (4, 8)", "4:5 of dim 0, which has 4"),
    "a negative index": (lambda: outside()[-1], "h (4, 8)", "-1:0 of dim 0"),
    "an empty slice": (lambda: outside()[2:2], "h (4, 8)", "2:2 of dim 0"),
    "select past the end": (lambda: outside().select(0, 4), "h (4, 8)", "4:5 of dim 0"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_an_index_that_leaves_the_tensor_is_refused(name: str) -> None:
    body, operand, sizes = BOUNDS[name]
    assert absent(("bounds", operand, sizes), refusal(body)) == []


REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "a step": (lambda: chip()[:, 0:8:2], ("outside the interpreted part", "t (64", "0, 8, 2")),
    "an ellipsis": (lambda: chip()[...], ("outside the interpreted part", "t (64", "Ellipsis")),  # type: ignore[index]
    "too many indices": (lambda: outside()[0, 0, 0], ("index", "h (4, 8)", "3 indices for 2 dims")),
    "no dim left": (lambda: outside()[0, 0], ("interpreted part", "h (4, 8)", "the last dim")),
    "one dim left on chip": (
        lambda: chip()[:, 0, 0],
        ("interpreted part", "t (64, 8, 4)", "the last dim"),
    ),
    "broadcast of a larger dim": (
        lambda: outside().broadcast(0, 8),
        ("broadcast of size 1", "h (4, 8)", "dim 0: 4"),
    ),
    "broadcast of partitions": (
        lambda: nl.ndarray((1, 4), nl.float32, name="t").broadcast(0, 8),
        ("no broadcast of partitions", "t (1, 4) float32 in sbuf", "to 8"),
    ),
    "write to a broadcast view": (
        lambda: nisa.dma_copy(outside()[0:1].broadcast(0, 4), outside()),
        ("only read", "dma_copy dst", "h (4, 8)"),
    ),
    "select on chip": (
        lambda: chip().select(0, 1),
        ("outside the interpreted part", "t (64", "select of dim 0"),
    ),
    "select by a float": (
        lambda: outside().select(0, tile((1, 1))),
        ("dynamic index", "tensor (1, 1) float32 in sbuf", "not (1, 1) int32"),
    ),
    "select by a row": (
        lambda: outside().select(0, nl.ndarray((1, 2), nl.int32)),
        ("dynamic index", "tensor (1, 2) int32 in sbuf", "not (1, 1) int32"),
    ),
    "select by poison": (
        lambda: outside().select(0, nl.ndarray((1, 1), nl.int32)),
        ("bounds", "h (4, 8)", "dynamic index -2147483648 of 4"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_view_that_nki_has_not_is_refused(name: str) -> None:
    body, parts = REFUSED[name]
    assert absent(parts, refusal(body)) == []


def test_an_int_drops_a_dim_but_never_the_partitions() -> None:
    def kernel() -> Tensor:
        assert chip()[0].shape == (1, 8, 4)
        assert chip()[:, 0].shape == (64, 4)
        assert chip()[0:64, nl.ds(2, 3), 1:].shape == (64, 3, 3)
        assert outside()[0].shape == (8,)
        assert outside()[0:1, :3].shape == (1, 3)
        return stored(tile((1, 1)))

    assert run(kernel)[0].values.shape == (1, 1)


def test_views_share_their_memory_and_describe_themselves() -> None:
    def kernel() -> Tensor:
        whole = tile((4, 6), fill=0.0)
        nisa.memset(whole[:, nl.ds(2, 2)], 1.0)
        assert (whole.ndim, whole.size, whole.dtype) == (2, 24, nl.float32)
        assert whole.buffer is nl.sbuf
        return stored(whole)

    assert run(kernel)[0].values[3].tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_a_row_of_hbm_is_broadcast_over_partitions_by_a_dma() -> None:
    def kernel(row: Tensor) -> Tensor:
        out = nl.ndarray((5, 3), nl.float32)
        nisa.dma_copy(out, row[0:1, :].broadcast(0, 5))
        return stored(out)

    found = run(kernel, np.arange(3, dtype=np.float32)[None])[0].values
    assert found.tolist() == [[0.0, 1.0, 2.0]] * 5


def test_a_tile_selects_a_matrix_when_it_is_read() -> None:
    def kernel(stack: Tensor, which: Tensor) -> Tensor:
        index = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(index, which[0:1, 1:2])
        return stored(loaded(stack.select(0, index)[1:3, :]))

    stack = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    found = run(kernel, stack, np.array([[0, 2]], np.int32))[0].values
    assert np.array_equal(found, stack[2, 1:3])


def test_a_tensor_is_selected_dynamically_once() -> None:
    def kernel(stack: Tensor, which: Tensor) -> Tensor:
        stack.select(0, loaded(which)).select(0, loaded(which))
        return stored(tile((1, 1)))

    stack, which = np.zeros((3, 4, 2), np.float32), np.array([[1]], np.int32)
    parts = ("one dynamic select", "argument 0 (4, 2)", "is a dynamic view already")
    assert_says(lambda: run(kernel, stack, which), parts)


def test_a_tensor_can_be_a_key() -> None:
    def kernel() -> Tensor:
        first, second = chip(), chip()
        assert len({first, second, first}) == 2
        return stored(tile((1, 1)))

    assert len(run(kernel)) == 1
