"""One operation on the device, against the CPU: ``-m trn_validate.workload.ops --spec FILE``.

A fixed tolerance would pass what is wrong in one dtype and fail what is right in another. So the
device's error is counted in those that the CPU makes in the same dtype, both against float64.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from trn_validate.operation import EXACT, Compare, OperationAnswer, OperationSpec
from trn_validate.workload.op_table import TABLE, Operation, Tensors, made
from trn_validate.workload.writer import versions

FLOOR = 4 * torch.finfo(torch.float32).eps
"""In float32 the CPU may be right to the bit. Errors up to this part of the largest value, or of
the norm, times the root of the terms of a sum, count as one: by so much do orders of summation
differ (N. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019)."""
DTYPES = (torch.float32, torch.bfloat16)
SEEDS = (0, 1)
_WORDS = 300


def main() -> None:
    """Compare the operation that ``--spec`` names, and leave the answer."""
    parser = argparse.ArgumentParser(prog="trn_validate.workload.ops")
    parser.add_argument("--spec", type=Path, required=True)
    path: Path = parser.parse_args().spec
    spec = OperationSpec.model_validate_json(path.read_text(encoding="utf-8"))
    # The limit on silence is for the operation, and not for what it took to get here.
    print(f"computing {spec.operation} on {spec.device}", flush=True)
    answer = answered(spec)
    with Path(spec.answer).open("w", encoding="utf-8") as file:
        file.write(answer.model_dump_json())
        file.flush()
        os.fsync(file.fileno())


def answered(spec: OperationSpec) -> OperationAnswer:
    """What the operation of a spec comes to; an error that it raises is an answer."""
    for hook in spec.hooks:
        module, _, function = hook.partition(":")
        getattr(importlib.import_module(module), function)(spec)
    began = time.monotonic()
    device, compared, refused = torch.device(spec.device), list[Compare](), ""
    tracker = Tracker()
    where: set[str] = set()
    try:
        where, compared = measured(spec.operation, device)
    except Exception as error:  # a device may refuse with anything
        refused = " ".join(f"{type(error).__name__}: {error}".split())[:_WORDS]
    return OperationAnswer(
        operation=spec.operation,
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        device=" and ".join(sorted(where)) or "none",
        versions=versions(),
        hooks=spec.hooks,
        compared=tuple(compared),
        refused=refused,
        fallbacks=tracker.fallbacks(),
        asked=tracker.name,
        seconds=time.monotonic() - began,
    )


class Tracker:
    """Whoever can say which operations ran on the CPU, if anybody can."""

    def __init__(self) -> None:
        self.name: Literal["", "torch_neuronx", "torch.neuron"] = ""
        self.source: Any = None
        # The vendor's package first; a device module that registered itself knows too.
        if hasattr(package := sys.modules.get("torch_neuronx"), "get_fallback_ops"):
            self.name, self.source = "torch_neuronx", package
        elif hasattr(module := getattr(torch, "neuron", None), "get_fallback_ops"):
            self.name, self.source = "torch.neuron", module
        if hasattr(self.source, "clear_op_tracking"):
            self.source.clear_op_tracking()

    def fallbacks(self) -> tuple[str, ...]:
        """What ran on the CPU since this was made."""
        if self.source is None:
            return ()
        return tuple(sorted(map(str, self.source.get_fallback_ops())))


def measured(name: str, device: torch.device) -> tuple[set[str], list[Compare]]:
    """Device types of the results, and every comparison of an operation."""
    operation, where, compared = TABLE[name], set[str](), list[Compare]()
    for seed in SEEDS:
        floats, others = made(operation, seed)
        for dtype in DTYPES if floats else (None,):
            low = tuple(one.to(dtype) for one in floats)
            # Of the very values that the device gets, not of those before they were rounded.
            exact = _results(operation, tuple(one.double() for one in low), others)
            found = on_device(operation, low, others, device)
            own = _results(operation, low, others)
            where |= {one.device.type for one in found}
            said = f"{str(dtype).removeprefix('torch.')} " if dtype else ""
            labels = _labels(operation, len(own))
            for label, mine, cpus, gold in zip(labels, found, own, exact, strict=True):
                what = f"{said}{label}, seed {seed}"
                compared.append(
                    compare(what, mine.cpu(), cpus, gold, operation.depth, exact=name in EXACT)
                )
    return where, compared


def on_device(
    operation: Operation, floats: Tensors, others: Tensors, device: torch.device
) -> Tensors:
    """What the operation gives on the device; a hook of the tests may stand in for it."""
    there = [tuple(one.to(device) for one in some) for some in (floats, others)]
    return _results(operation, *there)


def _results(operation: Operation, floats: Tensors, others: Tensors) -> Tensors:
    """Outputs, then the gradient of every float input."""
    leaves = [one.clone().requires_grad_(operation.gradients) for one in floats]
    result = operation.function(*leaves, *others)
    outputs = result if isinstance(result, tuple) else (result,)
    if not (leaves and operation.gradients):
        return tuple(one.detach() for one in outputs)
    output = outputs[0]
    # The same for every dtype and device, and made where it cannot be wrong.
    generator = torch.Generator().manual_seed(7)
    above = torch.randn(output.shape, dtype=torch.float64, generator=generator)
    above = above.bfloat16().to(output.dtype).to(output.device)
    gradients = torch.autograd.grad(output, leaves, above)
    return (*(one.detach() for one in outputs), *gradients)


def _labels(operation: Operation, count: int) -> Sequence[str]:
    outputs = count - (len(operation.floats) if operation.gradients else 0)
    gradients = (f"gradient {number}" for number in range(count - outputs))
    return [*(f"output {number}" for number in range(outputs)), *gradients]


def compare(
    what: str,
    found: torch.Tensor,
    low: torch.Tensor,
    gold: torch.Tensor,
    depth: int = 1,
    *,
    exact: bool = False,
) -> Compare:
    """``found`` against the CPU: ``low`` in the same dtype, ``gold`` in float64 or whole numbers.

    What is not floating point has to be equal whatever ``exact`` says; NaN equals nothing.
    """
    if found.shape != low.shape or found.dtype != low.dtype:
        other = f"{found.dtype} {tuple(found.shape)}, not {low.dtype} {tuple(low.shape)}"
        return Compare(what=what, largest=math.nan, norm=math.nan, degenerate=other)
    degenerate = next((k for k, is_so in _KINDS.items() if is_so(found) and not is_so(low)), "")
    if exact or not found.is_floating_point():
        differing = int((found != low).sum())
        return Compare(what=what, differing=differing, degenerate=degenerate)
    error, cpus = found.double() - gold, low.double() - gold
    floor = FLOOR * depth**0.5 if low.dtype == torch.float32 else 0.0
    ratios = [
        _ratio(float(error.norm(p)), max(float(cpus.norm(p)), floor * float(gold.norm(p))))
        for p in (math.inf, 2)
    ]
    return Compare(what=what, largest=ratios[0], norm=ratios[1], degenerate=degenerate)


def _ratio(error: float, cpus: float) -> float:
    if error == 0.0:
        return 0.0
    return error / cpus if cpus > 0.0 else math.inf


def _zero(one: torch.Tensor) -> bool:
    return not bool(one.any())


def _constant(one: torch.Tensor) -> bool:
    return one.numel() > 1 and bool((one == one.flatten()[0]).all())


def _not_finite(one: torch.Tensor) -> bool:
    return one.is_floating_point() and not bool(one.isfinite().all())


_KINDS = {"not finite": _not_finite, "zero": _zero, "constant": _constant}


if __name__ == "__main__":
    # Under its own name, so that a hook finds the very module that computes.
    from trn_validate.workload import ops

    ops.main()
