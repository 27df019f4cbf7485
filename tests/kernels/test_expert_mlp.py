from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.kernels.accuracy import assert_accurate, assert_same_bits, random, results
from trn_validate.errors import KernelError
from trn_validate.kernels import launches
from trn_validate.kernels.expert_mlp import LAUNCHES, expert_mlp, reference

DTYPES = [torch.float32, torch.bfloat16]
CASES = {
    "one row": ([1], 300, 400),
    "ragged": ([3, 0, 131, 2], 130, 200),
    "wider than a bank": ([130], 520, 140),
}
Function = Callable[..., torch.Tensor]


def made(counts: list[int], wide: int, hidden: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    rows, experts = sum(counts), len(counts)
    x, grad = random(rows, (rows, wide), (rows, wide))
    weights = random(1, (experts, hidden, wide), (experts, wide, hidden), (experts, hidden, wide))
    return [x, *(one / one.shape[2] ** 0.5 for one in weights)], grad


def by(counts: list[int], function: Function) -> Function:
    def counted(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return function(x, torch.tensor(counts), *weights)

    return counted


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_it_is_as_accurate_as_torch(case: str, dtype: torch.dtype, lnc: int) -> None:
    counts, wide, hidden = CASES[case]
    inputs, grad = made(counts, wide, hidden)
    with launches.on_cores(lnc):
        assert_accurate(
            by(counts, expert_mlp), by(counts, reference), inputs, grad, dtype, max(wide, hidden)
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_core_and_two_give_the_same_bits(dtype: torch.dtype) -> None:
    counts, wide, hidden = CASES["ragged"]
    inputs, grad = made(counts, wide, hidden)
    found = []
    for lnc in (1, 2):
        with launches.on_cores(lnc):
            found.append(results(by(counts, expert_mlp), inputs, grad, dtype))
    assert_same_bits(*found)


def test_an_expert_without_rows_gets_a_gradient_of_zeros() -> None:
    counts = [4, 0, 3]
    inputs, grad = made(counts, 8, 6)
    _, _, *gradients = results(by(counts, expert_mlp), inputs, grad, torch.float32)
    for one in gradients:
        assert torch.equal(one[1], torch.zeros_like(one[1]))
        assert bool(one[0].any()) and bool(one[2].any())


def test_rows_behind_the_counts_give_zero_and_add_to_no_gradient() -> None:
    inputs, grad = made([5, 4], 8, 6)
    few = [inputs[0][:7], *inputs[1:]]
    y, dx, *weights = results(by([5, 2], expert_mlp), inputs, grad, torch.float32)
    y7, dx7, *weights7 = results(by([5, 2], expert_mlp), few, grad[:7], torch.float32)
    assert not y[7:].any() and not dx[7:].any()
    assert_same_bits([y[:7], dx[:7], *weights], [y7, dx7, *weights7])


def test_every_launch_is_counted_and_nothing_else() -> None:
    inputs, grad = made([2, 3], 8, 6)
    for times in (1, 2):
        results(by([2, 3], expert_mlp), inputs, grad, torch.float32)
        assert launches.counts() == {name: times * count for name, count in LAUNCHES.items()}
    results(by([2, 3], reference), inputs, grad, torch.float32)
    assert launches.counts() == {name: 2 * count for name, count in LAUNCHES.items()}


@pytest.mark.parametrize("counts", [[2, 4], [-1, 6], [5], [1, 2, 2]], ids=str)
def test_counts_that_do_not_fit_are_an_error_and_no_launch(counts: list[int]) -> None:
    inputs, _ = made([2, 3], 8, 6)
    floats = [one.float() for one in inputs]
    with pytest.raises(KernelError):
        expert_mlp(floats[0], torch.tensor(counts), *floats[1:])
    assert launches.counts() == {}


def test_a_compiled_graph_launches_it_and_gives_the_same_bits() -> None:
    counts = torch.tensor([2, 3])
    inputs, grad = made([2, 3], 8, 6)

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return expert_mlp(x, counts, *weights)

    eager = results(function, inputs, grad, torch.float32)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    launches.reset()
    assert_same_bits(results(compiled, inputs, grad, torch.float32), eager)
    assert launches.counts() == LAUNCHES
