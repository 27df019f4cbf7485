"""Single operations as training uses them, on inputs that tell right from nearly right.

Each is a function of tensors of any float dtype. Inputs are made in float64 on the CPU, from a
seed; the caller casts them. Indices and masks stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

Tensors = tuple[torch.Tensor, ...]

BEYOND_INT32 = 2**40 + 12345
"""Lost where int64 is kept in 32 bits, as early versions of the vendor's package did."""


@dataclass(frozen=True)
class Operation:
    """One operation, with inputs for it."""

    function: Callable[..., torch.Tensor | Tensors]
    """Takes the float inputs and then the others; gives one tensor or several."""
    floats: tuple[tuple[int, ...], ...] = ()
    """Shapes of the float inputs, which all get gradients."""
    others: Callable[[torch.Generator], Tensors] = lambda generator: ()
    """Indices, masks and the like."""
    depth: int = 1
    """Terms of the longest sum behind a value, by the root of which orders of summation differ."""
    distinct: bool = False
    """The float inputs are such that bfloat16 keeps every two of them apart, so order is known."""
    gradients: bool = True


def made(operation: Operation, seed: int) -> tuple[Tensors, Tensors]:
    """Float inputs in float64, and the others."""
    generator = torch.Generator().manual_seed(seed)
    floats = []
    for shape in operation.floats:
        one = torch.randn(shape, dtype=torch.float64, generator=generator)
        if operation.distinct:
            # Whole numbers in any order along the last dim; bfloat16 holds them up to 256.
            one = one.argsort(-1).double() - shape[-1] // 2
        floats.append(one)
    return tuple(floats), operation.others(generator)


def _round_trip(*given: torch.Tensor) -> Tensors:
    return given


def _matmul(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(x * 4, dim=-1)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _embedding(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.embedding(tokens, table)


def _masked_assignment(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # As in aws-neuron-sdk issue 1381, where it was wrong and finite.
    changed = x.clone()
    changed[mask] = x[mask].flip(-1)
    return changed


def _gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.gather(-1, index)


def _scatter(x: torch.Tensor, source: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.scatter_add(-1, index, source)


def _topk(x: torch.Tensor) -> Tensors:
    values, index = x.topk(8, dim=-1)
    return values, index


def _cumsum(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(-1)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # One for each row: of a single number the error is chance, and no measure for another's.
    return functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def _whole_numbers(numbers: torch.Tensor, mask: torch.Tensor) -> Tensors:
    return numbers.sum(), numbers + numbers, mask.sum(), numbers[:, :3].cumsum(0), ~mask


def _adamw(
    weight: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor | Tensors:
    parameter = torch.nn.Parameter(weight.detach().clone())
    optimizer = torch.optim.AdamW([parameter], lr=1e-2, weight_decay=0.1)
    for gradient in (first, second):
        parameter.grad = gradient.detach().clone()
        optimizer.step()
    state = optimizer.state[parameter]
    # What the steps changed: a step that was not taken would be hidden by the weights.
    return parameter.detach() - weight.detach(), state["exp_avg"], state["exp_avg_sq"]


def _tokens(generator: torch.Generator) -> Tensors:
    # Some several times, and some never, so that the table's gradient has sums and zeros.
    return (torch.randint(0, 40, (4, 33), generator=generator),)


def _labels(generator: torch.Generator) -> Tensors:
    labels = torch.randint(0, 150, (66,), generator=generator)
    labels[::7] = -100
    return (labels,)


def _mask(generator: torch.Generator) -> Tensors:
    return (torch.rand(37, generator=generator) < 0.5,)


def _index(high: int, *shape: int) -> Callable[[torch.Generator], Tensors]:
    return lambda generator: (torch.randint(0, high, shape, generator=generator),)


def _numbers(generator: torch.Generator) -> Tensors:
    numbers = torch.randint(-1000, 1000, (5, 7), generator=generator) + BEYOND_INT32
    return numbers, torch.rand(5, 7, generator=generator) < 0.5


def _int64(generator: torch.Generator) -> Tensors:
    return (torch.tensor([0, -1, 2**31, -(2**31) - 1, BEYOND_INT32, 2**62 + 1]),)


def _int32(generator: torch.Generator) -> Tensors:
    return (torch.tensor([0, -1, 2**31 - 1, -(2**31), 2**24 + 1], dtype=torch.int32),)


def _bool(generator: torch.Generator) -> Tensors:
    return (torch.tensor([True, False, False, True, True]),)


def _float32(generator: torch.Generator) -> Tensors:
    return (torch.tensor([0.0, 1.0, -1 / 3, 1e-30, 3e38, 1 + 2**-23]),)


def _bfloat16(generator: torch.Generator) -> Tensors:
    return (torch.tensor([0.0, 1.0, -1 / 3, 1e-30, 3e38, 1 + 2**-7], dtype=torch.bfloat16),)


TABLE: dict[str, Operation] = {
    "round trip float32": Operation(_round_trip, others=_float32),
    "round trip bfloat16": Operation(_round_trip, others=_bfloat16),
    "round trip int64": Operation(_round_trip, others=_int64),
    "round trip int32": Operation(_round_trip, others=_int32),
    "round trip bool": Operation(_round_trip, others=_bool),
    "matmul": Operation(_matmul, ((130, 300), (300, 150)), depth=300),
    "softmax": Operation(_softmax, ((66, 130),), depth=130),
    "attention": Operation(_attention, ((2, 3, 70, 32),) * 3, depth=70),
    "embedding": Operation(_embedding, ((50, 24),), _tokens, depth=16),
    "masked assignment": Operation(_masked_assignment, ((37, 24),), _mask),
    "gather": Operation(_gather, ((20, 50),), _index(50, 20, 30), depth=8),
    "scatter": Operation(_scatter, ((20, 50), (20, 90)), _index(50, 20, 90), depth=16),
    "topk": Operation(_topk, ((24, 64),), distinct=True),
    "cumsum": Operation(_cumsum, ((20, 130),), depth=130),
    "cross entropy": Operation(_cross_entropy, ((66, 150),), _labels, depth=150),
    "rms norm": Operation(_rms_norm, ((70, 130), (130,)), depth=130),
    "whole numbers": Operation(_whole_numbers, others=_numbers),
    "adamw": Operation(_adamw, ((40, 60),) * 3, depth=4, gradients=False),
}
