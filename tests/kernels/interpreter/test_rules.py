"""Each rule of memory and of the instructions, broken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kernels.interpreter.programs import Tensor, absent, loaded, refusal, run, stored, tile
from trn_validate.kernels.interpreter import isa as nisa
from trn_validate.kernels.interpreter import language as nl

PSUM = nl.psum
BF16 = nl.bfloat16


def product(rows: int, columns: int, inner: int, **kinds: str) -> None:
    dst = nl.ndarray((rows, columns), kinds.get("dst", nl.float32), PSUM)
    left = tile((inner, rows), kinds.get("left", nl.float32))
    nisa.nc_matmul(dst, left, tile((inner, columns), kinds.get("right", nl.float32)))


def hbm(*shape: int) -> Tensor:
    return nl.ndarray(shape, nl.float32, nl.shared_hbm)


BROKEN: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "partitions of a tile": (
        lambda: nl.ndarray((129, 2), nl.float32),
        ("partition dimension", "ndarray (129, 2)", "129 of at most 128"),
    ),
    "dims of a tile": (
        lambda: nl.ndarray((5,), nl.float32),
        ("at least two dims on chip", "ndarray (5,) in sbuf", "1"),
    ),
    "empty tile": (
        lambda: nl.ndarray((4, 0), nl.float32),
        ("sizes above zero", "ndarray (4, 0)", "(4, 0)"),
    ),
    "unknown dtype": (
        lambda: nl.ndarray((4, 4), "float16", name="x"),
        ("outside the interpreted part", "ndarray x", "float16; known: float32, bfloat16, int32"),
    ),
    "unknown buffer": (
        lambda: nl.ndarray((4, 4), nl.float32, "sbuf", name="x"),  # type: ignore[arg-type]
        ("outside the interpreted part", "ndarray x", "sbuf; known"),
    ),
    "address": (
        lambda: nl.ndarray((4, 4), nl.float32, name="x", address=(0, 0)),
        ("outside the interpreted part", "ndarray x", "address="),
    ),
    "PSUM bank": (
        lambda: nl.ndarray((4, 513), nl.float32, PSUM),
        ("one PSUM bank", "ndarray (4, 513) in psum", "2052 bytes a partition of at most 2048"),
    ),
    "PSUM banks": (
        lambda: [nl.ndarray((1, 1), nl.float32, PSUM) for _ in range(9)],
        ("PSUM capacity", "ndarray (1, 1) in psum", "1 banks beside 8 live, of 8"),
    ),
    "SBUF": (
        lambda: [nl.ndarray((1, 14337), nl.float32) for _ in range(4)],
        ("SBUF capacity", "ndarray (1, 14337)", "57348 bytes beside 172044 live, of 229376"),
    ),
    "PSUM in a DMA": (
        lambda: nisa.dma_copy(tile((4, 4)), tile((4, 4), buffer=PSUM)),
        ("buffer", "dma_copy src", "tensor (4, 4) float32 in psum"),
    ),
    "elements of a DMA": (
        lambda: nisa.dma_copy(tile((4, 4)), tile((4, 5))),
        ("as many elements", "dma_copy dst", "(4, 4) against (4, 5)"),
    ),
    "an integer made a float": (
        lambda: nisa.dma_copy(tile((4, 4)), nl.ndarray((4, 4), nl.int32)),
        ("outside the interpreted part", "dma_copy dst", "int32 to float32"),
    ),
    "HBM in an instruction": (
        lambda: nisa.tensor_copy(tile((4, 4)), hbm(4, 4)),
        ("buffer", "tensor_copy src", "tensor (4, 4) float32 in shared_hbm, not in sbuf or psum"),
    ),
    "an integer in an instruction": (
        lambda: nisa.tensor_copy(tile((4, 4)), nl.ndarray((4, 4), nl.int32)),
        ("outside the interpreted part", "tensor_copy src", "int32; known: float32, bfloat16"),
    ),
    "no tensor": (
        lambda: nisa.tensor_copy(tile((4, 4)), 1.0),  # type: ignore[arg-type]
        ("a tensor", "tensor_copy src", "float"),
    ),
    "size of a copy": (
        lambda: nisa.tensor_copy(tile((4, 4)), tile((4, 5))),
        ("no broadcasting", "tensor_copy dst", "(4, 4) against (4, 5)"),
    ),
    "a column against a tile": (
        lambda: nisa.tensor_tensor(tile((8, 4)), tile((8, 4)), tile((8, 1)), nl.add),
        ("no broadcasting", "tensor_tensor data2", "(8, 1) against (8, 4)"),
    ),
    "partitions against free elements": (
        lambda: nisa.tensor_tensor(tile((8, 4)), tile((8, 4)), tile((4, 8)), nl.add),
        ("no broadcasting", "tensor_tensor data2", "(4, 8) against (8, 4)"),
    ),
    "destination of another size": (
        lambda: nisa.tensor_tensor(tile((8, 5)), tile((8, 4)), tile((8, 4)), nl.add),
        ("no broadcasting", "tensor_tensor dst", "(8, 5) against (8, 4)"),
    ),
    "both inputs in PSUM": (
        lambda: nisa.tensor_tensor(
            tile((4, 4)), tile((4, 4), buffer=PSUM), tile((4, 5), buffer=PSUM)[:, 0:4], nl.add
        ),
        ("inputs not both in PSUM", "tensor_tensor data2", "(4, 4) float32 in psum and"),
    ),
    "unknown operator": (
        lambda: nisa.tensor_tensor(tile((4, 4)), tile((4, 4)), tile((4, 4)), nl.silu),
        ("outside the interpreted part", "tensor_tensor op", "nl.silu; known: nl.add"),
    ),
    "unknown activation": (
        lambda: nisa.activation(tile((4, 4)), nl.add, tile((4, 4))),
        ("outside the interpreted part", "activation op", "nl.add; known: nl.copy"),
    ),
    "size of an activation": (
        lambda: nisa.activation(tile((4, 4)), nl.silu, tile((4, 3))),
        ("no broadcasting", "activation dst", "(4, 4) against (4, 3)"),
    ),
    "shape of an operand": (
        lambda: nisa.tensor_scalar(tile((4, 4)), tile((4, 4)), nl.multiply, tile((4, 4))),
        ("operand shape", "tensor_scalar operand0", "(4, 4), not (4, 1)"),
    ),
    "dtype of an operand": (
        lambda: nisa.tensor_scalar(tile((4, 4)), tile((4, 4)), nl.multiply, tile((4, 1), BF16)),
        ("operand dtype", "tensor_scalar operand0", "bfloat16, not float32"),
    ),
    "an operand that is no number": (
        lambda: nisa.tensor_scalar(tile((4, 4)), tile((4, 4)), nl.multiply, "2"),  # type: ignore[arg-type]
        ("a number or a tile", "tensor_scalar operand0", "str"),
    ),
    "one operator without its operand": (
        lambda: nisa.tensor_scalar(tile((4, 4)), tile((4, 4)), nl.add, 1.0, op1=nl.add),
        ("op1 and operand1 together", "tensor_scalar operand1", "operand1 is None"),
    ),
    "scale of an activation": (
        lambda: nisa.activation(tile((4, 4)), nl.copy, tile((4, 4)), scale=tile((1, 4))),
        ("operand shape", "activation scale", "(1, 4), not (4, 1)"),
    ),
    "bias of an activation": (
        lambda: nisa.activation(tile((4, 4)), nl.copy, tile((4, 4)), bias=tile((3, 1))),
        ("operand shape", "activation bias", "(3, 1), not (4, 1)"),
    ),
    "a sum over partitions": (
        lambda: nisa.tensor_reduce(tile((1, 4)), nl.add, tile((4, 4)), axis=0),
        ("reduce the last free dims", "tensor_reduce axis", "(0,) of (4, 4)"),
    ),
    "a sum over a dim in between": (
        lambda: nisa.tensor_reduce(tile((4, 3)), nl.add, tile((4, 2, 3)), axis=1),
        ("reduce the last free dims", "tensor_reduce axis", "(1,) of (4, 2, 3)"),
    ),
    "size of a sum": (
        lambda: nisa.tensor_reduce(tile((4, 2)), nl.add, tile((4, 3)), axis=1),
        ("size of the result", "tensor_reduce dst", "(4, 2) for (4,)"),
    ),
    "operator of a sum": (
        lambda: nisa.tensor_reduce(tile((4, 1)), nl.multiply, tile((4, 3)), axis=1),
        ("outside the interpreted part", "tensor_reduce op", "nl.multiply; known: nl.add"),
    ),
    "stationary free size": (
        lambda: nisa.nc_matmul(tile((128, 4), buffer=PSUM), tile((4, 129)), tile((4, 4))),
        ("stationary free size", "nc_matmul stationary", "129 of at most 128"),
    ),
    "moving free size": (
        lambda: nisa.nc_matmul(tile((4, 512), buffer=PSUM), tile((4, 4)), tile((4, 513))),
        ("moving free size", "nc_matmul moving", "513 of at most 512"),
    ),
    "contraction": (
        lambda: nisa.nc_matmul(tile((4, 4), buffer=PSUM), tile((8, 4)), tile((7, 4))),
        ("contraction on the partitions", "nc_matmul moving", "7 partitions against 8"),
    ),
    "dims of a product": (
        lambda: nisa.nc_matmul(tile((4, 4), buffer=PSUM), tile((8, 2, 2)), tile((8, 4))),
        ("outside the interpreted part", "nc_matmul stationary", "3 dims"),
    ),
    "destination of a product in SBUF": (
        lambda: nisa.nc_matmul(tile((4, 4)), tile((8, 4)), tile((8, 4))),
        ("buffer", "nc_matmul dst", "(4, 4) float32 in sbuf, not in psum"),
    ),
    "input of a product in PSUM": (
        lambda: nisa.nc_matmul(tile((4, 4), buffer=PSUM), tile((8, 4), buffer=PSUM), tile((8, 4))),
        ("buffer", "nc_matmul stationary", "(8, 4) float32 in psum, not in sbuf"),
    ),
    "shape of a product": (
        lambda: nisa.nc_matmul(tile((5, 4), buffer=PSUM), tile((8, 4)), tile((8, 5))),
        ("product shape", "nc_matmul dst", "(5, 4), not (4, 5)"),
    ),
    "dtype of a product": (
        lambda: product(4, 4, 8, dst=BF16),
        ("product dtype", "nc_matmul dst", "bfloat16, not float32"),
    ),
    "float32 on one side": (
        lambda: product(4, 4, 8, left=BF16),
        ("float32 on both sides", "nc_matmul moving", "float32 against bfloat16"),
    ),
    "a sum from what nothing wrote": (
        lambda: nisa.nc_matmul(
            nl.ndarray((4, 4), nl.float32, PSUM), tile((8, 4)), tile((8, 4)), accumulate=True
        ),
        ("accumulate on a product", "nc_matmul dst", "a product wrote 0 of 16"),
    ),
    "a sum from what memset wrote": (
        lambda: nisa.nc_matmul(tile((4, 4), buffer=PSUM), tile((8, 4)), tile((8, 4))),
        ("accumulate on a product", "nc_matmul dst", "a product wrote 0 of 16"),
    ),
    "size of a transpose": (
        lambda: nisa.nc_transpose(tile((4, 4), buffer=PSUM), tile((4, 129))),
        ("transpose size", "nc_transpose data", "(4, 129) of at most (128, 128)"),
    ),
    "shape of a transpose": (
        lambda: nisa.nc_transpose(tile((4, 5), buffer=PSUM), tile((4, 5))),
        ("transpose shape", "nc_transpose dst", "(4, 5), not (5, 4)"),
    ),
    "dtype of a transpose": (
        lambda: nisa.nc_transpose(tile((5, 4), buffer=PSUM), tile((4, 5), BF16)),
        ("transpose dtype", "nc_transpose dst", "float32, not bfloat16"),
    ),
    "transpose into SBUF": (
        lambda: nisa.nc_transpose(tile((5, 4)), tile((4, 5))),
        ("buffer", "nc_transpose dst", "(5, 4) float32 in sbuf, not in psum"),
    ),
    "start of 100 partitions": (
        lambda: nisa.memset(nl.ndarray((128, 1), nl.float32)[nl.ds(28, 100)], 0.0),
        ("partition start", "memset dst", "100 partitions from 28"),
    ),
    "start of 40 partitions": (
        lambda: nisa.memset(nl.ndarray((128, 1), nl.float32)[nl.ds(32, 40)], 0.0),
        ("partition start", "memset dst", "40 partitions from 32, which is no multiple of 64"),
    ),
    "start of one partition": (
        lambda: nisa.memset(nl.ndarray((128, 1), nl.float32)[1], 0.0),
        ("partition start", "memset dst", "1 partitions from 1, which is no multiple of 32"),
    ),
    "a call of an operator": (
        lambda: nl.add(tile((4, 4)), tile((4, 4))),
        ("outside the interpreted part", "nl.add", "a call"),
    ),
    "an axis of the grid": (
        lambda: nl.program_id(1),
        ("outside the interpreted part", "program_id", "axis 1"),
    ),
    "axes of the grid": (
        lambda: nl.num_programs(1),
        ("outside the interpreted part", "num_programs", "axes 1"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_names_itself_the_operand_and_the_sizes(name: str) -> None:
    body, parts = BROKEN[name]
    assert absent(parts, refusal(body)) == []


def test_a_tile_that_died_makes_room_for_the_next() -> None:
    def kernel() -> Tensor:
        for _ in range(20):
            tile((4, 512), buffer=PSUM)
            tile((4, 30000))
        return stored(tile((1, 1)))

    assert run(kernel)[0].values.tolist() == [[1.0]]


def test_a_view_keeps_its_memory_alive() -> None:
    def body() -> None:
        views = [nl.ndarray((4, 512), nl.float32, PSUM)[:, 0:1] for _ in range(8)]
        assert len(views) == 8
        nl.ndarray((4, 1), nl.float32, PSUM)

    parts = ("PSUM capacity", "ndarray (4, 1) in psum", "1 banks beside 8 live, of 8")
    assert absent(parts, refusal(body)) == []


def test_without_accumulate_the_first_product_overwrites_and_the_next_adds() -> None:
    def kernel() -> Tensor:
        dst = nl.ndarray((4, 4), nl.float32, PSUM)
        for _ in range(2):
            nisa.nc_matmul(dst, tile((8, 4)), tile((8, 4)))
        nisa.nc_matmul(dst[:, 0:2], tile((8, 4)), tile((8, 2)), accumulate=False)
        out = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(out, dst)
        return stored(out)

    assert run(kernel)[0].values[0].tolist() == [8.0, 8.0, 16.0, 16.0]


def test_what_reads_a_tile_that_nothing_wrote_gives_no_number() -> None:
    def kernel() -> Tensor:
        out = tile((4, 4), fill=None)
        nisa.tensor_scalar(out, tile((4, 4), fill=None), nl.multiply, 0.0)
        return stored(out)

    values = run(kernel)[0].values
    assert (values != values).all()


def test_loaded_is_a_copy() -> None:
    def kernel() -> Tensor:
        source = stored(tile((2, 2)))
        copy = loaded(source)
        nisa.memset(copy, 5.0)
        return source

    assert run(kernel)[0].values.tolist() == [[1.0, 1.0], [1.0, 1.0]]
