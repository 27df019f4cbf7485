"""Launches of kernels: on how many cores, by which provider, and how many there were."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import is_fake

from trn_validate.errors import KernelError
from trn_validate.kernels.providers import provider

Tensors = tuple[torch.Tensor, ...]

_counts: Counter[str] = Counter()
_traces: Counter[str] = Counter()
_lock = threading.Lock()
_cores: int | None = None


def counts() -> dict[str, int]:
    """Launches that were carried out since :func:`reset`, by kernel.

    Exact for ``simulator`` and ``interpreter``. On a device, a launch inside a compiled graph
    does not pass through here; :func:`traces` has what was compiled into graphs.
    """
    with _lock:
        return dict(_counts)


def traces() -> dict[str, int]:
    """Times since :func:`reset` that a kernel was traced and not run, by kernel.

    Guess: that on a device torch traces the body of an operator; the documentation of ``nki_op``
    says that the body is its own fake.
    """
    with _lock:
        return dict(_traces)


def reset() -> None:
    """Count from zero."""
    with _lock:
        _counts.clear()
        _traces.clear()


def cores() -> int:
    """Cores of a launch, as the Neuron runtime is told: NEURON_LOGICAL_NC_CONFIG, on Trn2 else 2.

    Source: nki/api/nki/__init__.py, ``jit``;
    about-neuron/arch/neuron-features/logical-neuroncore-config.rst.

    Raises:
        KernelError: the variable is neither 1 nor 2.
    """
    if _cores is not None:
        return _cores
    text = os.environ.get("NEURON_LOGICAL_NC_CONFIG", "2")
    if text not in ("1", "2"):
        raise KernelError(f"NEURON_LOGICAL_NC_CONFIG is {text!r}", todo="Set it to 1 or 2.")
    return int(text)


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Launch on ``count`` cores, whatever the runtime is told; for the checks of a kernel."""
    global _cores
    before, _cores = _cores, count
    try:
        yield
    finally:
        _cores = before


def register(name: str, body: Callable[..., Any], fake: Callable[..., Any]) -> CustomOpDef:
    """Make ``body`` the operator ``trn_validate::name``; it mutates nothing and aliases nothing.

    ``fake`` gives outputs of the right shape, dtype and strides, with no values.
    """
    return provider().register(f"trn_validate::{name}", body, fake)


def launch(name: str, kernel: Any, *arguments: Any) -> Tensors:
    """Run ``kernel`` and count it under ``name``, if it ran; contiguous tensors, then constants.

    Raises:
        KernelError: the kernel broke a rule of NKI.
    """
    outputs = provider().run(kernel, cores(), arguments)
    found: Tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    # On a device the body is its own fake: with fake tensors nothing ran.
    counter = _traces if any(is_fake(one) for one in found) else _counts
    with _lock:
        counter[name] += 1
    return found
