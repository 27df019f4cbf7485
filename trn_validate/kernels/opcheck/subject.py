"""What is checked, and on which inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from trn_validate.kernels.providers import provider

Function = Callable[..., torch.Tensor]
Tensors = tuple[torch.Tensor, ...]
Shapes = tuple[tuple[int, ...], ...]
Place = Literal["ragged", "one row", "many rows", "small"]


@dataclass(frozen=True)
class Subject:
    """A kernel as its users call it, beside its reference."""

    name: str
    function: Function
    """Takes the float tensors, which all get gradients, and gives one."""
    reference: Function
    """The same in plain torch, for any float dtype."""
    shapes: Mapping[Place, Shapes]
    """Shapes of the tensors: ``ragged`` has no multiple of 128, ``many rows`` has more than two
    blocks of 128, and ``small`` is for differences and registration."""
    launches: Mapping[str, int]
    """Launches of one forward and backward, by name."""
    scaled: tuple[int, ...] = (0,)
    """The tensors that a case scales; the others are near 1, or of the size of 1 / sqrt(n)."""
    large: float = 1e4
    """Scale of large inputs."""
    depth: int = 1
    """Terms of the longest sum behind a value, where kernel and torch take it in other orders."""
    centred: tuple[int, ...] = ()
    """The tensors that lie around 1, as the weight of a norm does."""


@dataclass(frozen=True)
class Case:
    """Inputs that find what others miss."""

    name: str
    place: Place = "ragged"
    seed: int = 0
    scale: float | Literal["large"] = 1.0
    strided: bool = False
    cores: int | None = None
    """Cores of the launch; None leaves what the runtime is told."""


CASES = (
    Case("ragged"),
    Case("ragged, other values", seed=1),
    Case("one row", "one row"),
    Case("many rows, one core", "many rows", cores=1),
    Case("many rows, two cores", "many rows", cores=2),
    Case("not contiguous", strided=True),
    Case("tiny", scale=1e-3),
    Case("large", scale="large"),
    Case("zeros", scale=0.0),
)


def made(
    subject: Subject, case: Case, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensors, torch.Tensor]:
    """Inputs and the gradient of the output, in ``dtype``, where kernels run.

    Their values follow from the seeds of case and caller.
    """
    generator = torch.Generator().manual_seed(1000 * seed + case.seed)
    scale = subject.large if case.scale == "large" else case.scale
    inputs = []
    for index, shape in enumerate(subject.shapes[case.place]):
        one = torch.randn(shape, dtype=torch.float64, generator=generator)
        if index in subject.scaled:
            one = one * scale
        elif index in subject.centred:
            one = one + 1.0
        elif len(shape) > 1:
            one = one / shape[-1] ** 0.5
        inputs.append(one.to(dtype))
    with torch.no_grad():
        output = subject.reference(*inputs)
    grad = torch.randn(output.shape, dtype=torch.float64, generator=generator).to(dtype)
    device = provider().device
    there, above = [one.to(device) for one in inputs], grad.to(device)
    if case.strided:
        return tuple(map(strided, there)), strided(above)
    return tuple(there), above


def strided(one: torch.Tensor) -> torch.Tensor:
    """The same values (any shape) with other strides."""
    if one.dim() > 1:
        return one.mT.contiguous().mT
    return torch.stack([one, one], dim=-1)[..., 0]


def results(function: Function, inputs: Tensors, grad: torch.Tensor) -> Tensors:
    """Output of ``function``, and the gradient of every input, from copies of the same strides.

    Copies: a gradient belongs to one run, and what a kernel changes must not reach another.
    """
    leaves = [copied(one).requires_grad_() for one in inputs]
    output = function(*leaves)
    return (output.detach(), *torch.autograd.grad(output, leaves, copied(grad)))


def exact_results(subject: Subject, inputs: Tensors, grad: torch.Tensor) -> Tensors:
    """What the reference gives in float64, on the CPU: accelerators have none."""
    doubles = tuple(one.cpu().double() for one in inputs)
    return results(subject.reference, doubles, grad.cpu().double())


def copied(one: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of ``one``."""
    made_ = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
    return made_.copy_(one.detach())


def labels(inputs: Tensors) -> tuple[str, ...]:
    """Names of what :func:`results` gives."""
    return ("output", *(f"gradient {number}" for number in range(len(inputs))))


def said(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
