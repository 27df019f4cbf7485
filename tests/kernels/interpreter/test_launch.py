"""Launches: the grid, what goes in and out, and what two programs may not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.interpreter.programs import Tensor, assert_says, loaded, run, stored, tile
from trn_validate.kernels.interpreter import Host, jit
from trn_validate.kernels.interpreter import isa as nisa
from trn_validate.kernels.interpreter import language as nl


def test_each_program_knows_its_place_and_writes_its_part() -> None:
    def kernel() -> Tensor:
        out = nl.ndarray((4, 1), nl.float32, nl.shared_hbm)
        for row in range(nl.program_id(0), 4, nl.num_programs(0)):
            nisa.dma_copy(out[row : row + 1], tile((1, 1), fill=float(nl.program_id())))
        return out

    assert run(kernel)[0].values[:, 0].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert run(kernel, lnc=2)[0].values[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("lnc", [0, 3, 8, "2", (2,)])
def test_other_numbers_of_cores_are_refused(lnc: Any) -> None:
    def kernel() -> Tensor:
        return stored(tile((1, 1)))

    assert_says(lambda: jit(kernel)[lnc], ("cores of a launch", "kernel kernel", f"{lnc!r} of"))


def test_an_element_written_by_two_programs_is_refused() -> None:
    def kernel() -> Tensor:
        return stored(tile((2, 3)))

    parts = ("no element of two programs", "tensor (2, 3)", "6 of 6 elements written by program 1")
    assert_says(lambda: run(kernel, lnc=2), parts)
    assert run(kernel)[0].values.shape == (2, 3)


def test_an_element_read_by_the_other_program_is_refused() -> None:
    def kernel() -> Tensor:
        out = nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
        mine, other = nl.program_id(), 1 - nl.program_id()
        nisa.dma_copy(out[mine : mine + 1], tile((1, 3)))
        loaded(out[other : other + 1])
        return out

    parts = ("no element of two programs", "tensor (1, 3)", "3 of 3 elements read by program 1")
    assert_says(lambda: run(kernel, lnc=2), parts)


def test_programs_that_allocate_other_shared_tensors_are_refused() -> None:
    def kernel() -> Tensor:
        return nl.ndarray((2 + nl.program_id(), 3), nl.float32, nl.shared_hbm)

    parts = ("same allocations", "ndarray (3, 3)", "(3, 3) float32, in program 0 (2, 3)")
    assert_says(lambda: run(kernel, lnc=2), parts)


def test_a_second_program_that_allocates_more_is_refused() -> None:
    def kernel() -> Tensor:
        made = [nl.ndarray((1, 1), nl.float32, nl.shared_hbm) for _ in range(1 + nl.program_id())]
        return made[0]

    assert_says(lambda: run(kernel, lnc=2), ("same allocations", "ndarray (1, 1)", "number 1"))


def test_programs_that_return_other_outputs_are_refused() -> None:
    def kernel() -> Any:
        a, b = (nl.ndarray((1, 1), nl.float32, nl.shared_hbm) for _ in range(2))
        return (a, b) if nl.program_id() == 0 else a

    assert_says(
        lambda: run(kernel, lnc=2), ("same outputs in every program", "program 1", "1 returned")
    )


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.private_hbm])
def test_an_output_that_is_not_shared_is_refused(buffer: nl.MemoryRegion) -> None:
    def kernel() -> Tensor:
        return nl.ndarray((2, 2), nl.float32, buffer)

    parts = ("outputs in shared HBM", "output 0 of kernel", f"(2, 2) float32 in {buffer.value}")
    assert_says(lambda: run(kernel), parts)


def test_an_input_that_is_returned_or_a_number_is_refused() -> None:
    def same(x: Tensor) -> Tensor:
        return x

    def number(x: Tensor) -> float:
        return 1.0

    x = np.zeros((2, 2), np.float32)
    assert_says(lambda: run(same, x), ("outputs in shared HBM", "output 0 of same", "(2, 2)"))
    assert_says(lambda: run(number, x), ("outputs in shared HBM", "output 0 of number", "float"))


def test_an_input_is_only_read() -> None:
    def kernel(x: Tensor) -> Tensor:
        nisa.dma_copy(x, tile((2, 2)))
        return stored(tile((2, 2)))

    x = np.zeros((2, 2), np.float32)
    assert_says(lambda: run(kernel, x), ("only read", "dma_copy dst", "argument 0 (2, 2)"))
    assert not x.any()


def test_an_array_of_another_dtype_is_refused_and_a_number_is_passed_on() -> None:
    def kernel(x: Tensor, factor: float) -> Tensor:
        out = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_scalar(out, loaded(x), nl.multiply, factor)
        return stored(out)

    x = np.ones((2, 2))
    parts = ("outside the interpreted part", "argument 0", "float64; known: float32, int32")
    assert_says(lambda: run(kernel, x, 3.0), parts)
    found = run(kernel, Host(x.astype(np.float32), nl.bfloat16), 3.0)[0]
    assert (found.dtype, found.values.tolist()) == (nl.bfloat16, [[3.0, 3.0], [3.0, 3.0]])


def test_nki_outside_a_kernel_and_a_kernel_inside_a_kernel_are_refused() -> None:
    def kernel() -> Tensor:
        run(kernel)
        return stored(tile((1, 1)))

    assert_says(lambda: nl.program_id(), ("outside a kernel",))
    assert_says(lambda: run(kernel), ("inside a kernel",))


def test_a_launch_after_one_that_failed_starts_anew() -> None:
    def wrong() -> Tensor:
        return nl.ndarray((200, 1), nl.float32)

    def right() -> Tensor:
        return stored(tile((1, 1)))

    assert_says(lambda: run(wrong), ("partition dimension", "ndarray (200, 1)", "200"))
    assert run(right)[0].values.tolist() == [[1.0]]


def test_a_kernel_keeps_the_name_and_text_of_its_function() -> None:
    @jit
    def kernel() -> Tensor:
        """Say something."""
        return stored(tile((1, 1)))

    assert (kernel.__name__, kernel[2].__doc__) == ("kernel", "Say something.")
