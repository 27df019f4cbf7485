"""The compiler backend ``neuron``: whole graphs forward and backward, executed op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch


def neuron(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Trace forward and backward of a graph, and run them as they are."""
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=_as_it_is, bw_compiler=_as_it_is)(graph, inputs)


def _as_it_is(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func  # type: ignore[import-untyped]  # has no types

    boxed: Callable[..., Any] = make_boxed_func(graph.forward)
    return boxed


@cache
def register() -> None:
    """Tell torch.compile of the device, once.

    There is no Inductor for it, and torchtitan compiles its attention mask by the default backend.
    Not while torch is being imported: Dynamo's modules import others that may be half imported
    themselves, such as spmd_types.
    """
    from torch._dynamo.device_interface import register_interface_for_device

    from torch_neuron_rehearsal.interface import NeuronInterface

    torch.compiler.set_default_backend("neuron")
    register_interface_for_device("neuron", NeuronInterface)
