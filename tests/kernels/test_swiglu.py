from __future__ import annotations

import pytest
import torch

from tests.kernels.accuracy import assert_accurate, assert_same_bits, random, results
from trn_validate.errors import KernelError
from trn_validate.kernels import launches
from trn_validate.kernels.swiglu import LAUNCHES, reference, swiglu

SHAPES = [(1, 7), (129, 130), (260, 520), (2, 2050)]
DTYPES = [torch.float32, torch.bfloat16]


def made(shape: tuple[int, int], scale: float = 1.0) -> tuple[list[torch.Tensor], torch.Tensor]:
    gate, up, grad = random(sum(shape), shape, shape, shape, scale=scale)
    return [gate, up], grad


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_as_accurate_as_torch(shape: tuple[int, int], dtype: torch.dtype, lnc: int) -> None:
    inputs, grad = made(shape)
    with launches.on_cores(lnc):
        assert_accurate(swiglu, reference, inputs, grad, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_core_and_two_give_the_same_bits(dtype: torch.dtype) -> None:
    inputs, grad = made((300, 600))
    found = []
    for lnc in (1, 2):
        with launches.on_cores(lnc):
            found.append(results(swiglu, inputs, grad, dtype))
    assert_same_bits(*found)


def test_leading_dims_and_strides_do_not_matter() -> None:
    gate, up = torch.randn(6, 5, 40), torch.randn(5, 6, 40)
    bent = gate.transpose(0, 1)
    assert not bent.is_contiguous()
    found = swiglu(bent, up)
    assert found.shape == up.shape
    assert torch.equal(found, swiglu(bent.contiguous(), up))


def test_every_launch_is_counted_and_nothing_else() -> None:
    gate, up = (torch.randn(300, 40, requires_grad=True) for _ in range(2))
    for times in (1, 2, 3):
        swiglu(gate, up).sum().backward()
        assert launches.counts() == {name: times * count for name, count in LAUNCHES.items()}
    reference(gate, up).sum().backward()
    assert launches.counts() == {name: 3 * count for name, count in LAUNCHES.items()}


@pytest.mark.parametrize(
    ("gate", "up"),
    [
        (torch.ones(4, 8), torch.ones(5, 8)),
        (torch.ones(4, 8), torch.ones(4, 8, dtype=torch.bfloat16)),
        (torch.ones(4, 8, dtype=torch.float16), torch.ones(4, 8, dtype=torch.float16)),
    ],
    ids=["rows", "dtypes", "float16"],
)
def test_what_it_cannot_launch_is_an_error_and_no_launch(
    gate: torch.Tensor, up: torch.Tensor
) -> None:
    with pytest.raises(KernelError):
        swiglu(gate, up)
    assert launches.counts() == {}


def test_a_compiled_graph_launches_it_and_gives_the_same_bits() -> None:
    inputs, grad = made((130, 40))
    eager = results(swiglu, inputs, grad, torch.float32)
    compiled = torch.compile(swiglu, backend="aot_eager", fullgraph=True)
    launches.reset()
    assert_same_bits(results(compiled, inputs, grad, torch.float32), eager)
    assert launches.counts() == LAUNCHES
