"""Gradients and parameters, gathered whole, under the names that every layout shares.

Each parameter is gathered by every rank that shares its pipeline stage, one at a time. What
is kept of it is the whole tensor, or a sketch where a model is too large for that.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from trn_validate.records import Captured, Moment
from trn_validate.spec import CAPTURE

SKETCH_WIDTH = 1021
"""Sums of a sketch. A prime, so that a fault in one column of a matrix, whose entries lie a
power of two apart, is spread over all of them."""

_CHUNK = SKETCH_WIDTH * 4096
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """A parameter's name without what compilation and activation checkpointing put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def parameters(model_parts: list[torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Every parameter of this rank's stage in forward order; a tied one under its first name."""
    for part in model_parts:
        for name, parameter in part.named_parameters():
            yield plain_name(name), parameter


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on the host, as float32; a collective where it is sharded."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().to("cpu", torch.float32).contiguous()


def sketch(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Sums of a float32 tensor's entries under random signs, (SKETCH_WIDTH,) float64.

    Entry i goes into sum i mod SKETCH_WIDTH with a sign that depends on ``name`` and i alone.
    It is linear, and its squared norm has the tensor's as its mean, with a relative standard
    deviation of about sqrt(2 / SKETCH_WIDTH) = 4 % (Charikar, Chen and Farach-Colton 2002;
    Alon, Matias and Szegedy 1996): so differences of sketches are sketches of differences.
    """
    generator = _generator(name)
    total = torch.zeros(SKETCH_WIDTH, dtype=torch.float64)
    flat = tensor.flatten()
    for first in range(0, flat.numel(), _CHUNK):
        chunk = flat[first : first + _CHUNK]
        signs = torch.randint(0, 2, (chunk.numel(),), generator=generator, dtype=torch.int8)
        padded = torch.zeros(-(-chunk.numel() // SKETCH_WIDTH) * SKETCH_WIDTH)
        padded[: chunk.numel()] = chunk * (signs * 2 - 1)
        total += padded.view(-1, SKETCH_WIDTH).sum(0, dtype=torch.float64)
    return total


def _generator(text: str) -> torch.Generator:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(seed)


def capture(
    moment: Moment,
    model_parts: list[torch.nn.Module],
    *,
    mode: CAPTURE,
    stage: int,
    folder: Path | None,
) -> Captured:
    """Gather every parameter, or its gradient, and keep what ``mode`` says.

    All ranks of a stage have to call it together. ``folder`` is where this rank writes its
    file; None writes none.
    """
    begun = time.perf_counter()
    kept: dict[str, torch.Tensor] = {}
    norms: dict[str, float] = {}
    digests: dict[str, str] = {}
    absent: list[str] = []
    for name, parameter in parameters(model_parts):
        tensor = parameter.grad if moment == "gradient" else parameter
        if tensor is None:
            # A weight that is frozen asks for none.
            absent += [name] if parameter.requires_grad else []
            continue
        full = whole(tensor)
        norms[name] = float(torch.linalg.vector_norm(full, dtype=torch.float64))
        small = full if mode == "full" or full.numel() <= SKETCH_WIDTH else sketch(name, full)
        digests[name] = _digest(small)
        if folder is not None:
            kept[name] = small
    return Captured(
        what=moment,
        mode=mode,
        stage=stage,
        file=_write(folder, f"{moment}.stage-{stage}.safetensors", kept),
        norms=norms,
        digests=digests,
        absent=tuple(absent),
        seconds=time.perf_counter() - begun,
    )


def _digest(tensor: torch.Tensor) -> str:
    # A view as bytes needs a dim, which a scalar does not have.
    return hashlib.sha256(tensor.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def _write(folder: Path | None, name: str, tensors: Mapping[str, torch.Tensor]) -> str | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / name)
    return name


def stage_of(trainer: Any) -> tuple[int, bool]:
    """This rank's pipeline stage, and whether it is the first rank of it."""
    mesh = trainer.parallel_dims.get_optional_mesh("pp")
    stage = mesh.get_local_rank() if mesh is not None else 0
    world = dist.get_world_size()
    # pp is the outermost axis of torchtitan's mesh, so each stage is one block of ranks.
    return stage, dist.get_rank() % (world // trainer.parallel_dims.pp) == 0


@torch.no_grad()
def perturb(model_parts: list[torch.nn.Module], dtype: torch.dtype, seed: int) -> None:
    """Move every weight by one unit in the last place of ``dtype``, up or down at random.

    The unit of a value v is 2**(e - bits), where v = m * 2**e with m in [0.5, 1) and ``bits``
    counts the significand with its hidden bit (float32: 24, bfloat16: 8). A zero is left alone.
    """
    bits = {torch.float32: 24, torch.bfloat16: 8}[dtype]
    for name, parameter in parameters(model_parts):
        # By name, so that a parameter is moved alike whatever else the model holds.
        generator = _generator(f"{seed} {name}")
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
        host = local.detach().to("cpu", torch.float32)
        signs = torch.randint(0, 2, host.shape, generator=generator) * 2 - 1
        exponent = torch.frexp(host).exponent
        unit = torch.ldexp(torch.ones_like(host), exponent - bits)
        local.copy_(torch.where(host == 0, host, host + signs * unit))
