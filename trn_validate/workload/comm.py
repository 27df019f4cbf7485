"""What a block of code communicates: calls and bytes by kind, as one rank sees them.

torch's own CommDebugMode knows neither sizes nor send and receive, so this is a mode of ours.
Like that one it stands where operators are dispatched, below autograd and below tensor
subclasses: FSDP's hooks, DTensor's redistributions, a pipeline schedule and compiled code all
come by there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trn_validate.records import Communication

_NAMESPACES = frozenset(
    # c10d_functional is met in inference mode alone; elsewhere torch takes it apart before.
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"}
)

_LOCAL = frozenset(
    {"wait_tensor", "wrap_tensor_autograd", "check_for_nan", "mesh_get_process_group"}
)
"""What these namespaces hold besides communication, by plain name."""

_PREFIXES = {
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "isend": "send",
    "irecv": "recv",
    "recv": "recv",
}
"""How the operators of a kind begin: most have in-place, coalesced and out variants."""

_WITHOUT_PAYLOAD = frozenset({"barrier", "monitored_barrier"})
"""Their tensor only says which device is meant."""


class CommunicationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's base
    """Counts what this rank communicates while it is entered.

    A call counts once, also where it takes several tensors; a batch of sends and receives is
    so many calls. Its bytes are those of this rank's tensors: the larger of what it takes and
    what it gives.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's base is not annotated
        self.calls: Counter[str] = Counter()
        """Calls by kind."""
        self.bytes: Counter[str] = Counter()
        """Bytes by kind."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run compiled; its collectives are seen as it runs.

        Without this Dynamo skips what it compiled, and raises where a full graph is demanded,
        as for the attention mask under context parallelism.
        """
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and count it if it communicates."""
        named = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return func(*args, **named)
        if any(issubclass(kind, DTensor) for kind in types):
            # DTensor goes first; what it makes of the call comes here with local tensors. Other
            # subclasses do not: not every one can do without the mode's running the call.
            return NotImplemented
        result = func(*args, **named)
        operator_kind = kind_of(func._schema.name)
        if operator_kind is not None:
            for kind, size in _calls(operator_kind, [*args, *named.values()], result):
                self.calls[kind] += 1
                self.bytes[kind] += size
        return result

    def record(self, step: int) -> Communication:
        """What was counted so far, as the record of step ``step``."""
        calls, sizes = dict(sorted(self.calls.items())), dict(sorted(self.bytes.items()))
        return Communication(step=step, calls=calls, bytes=sizes)


def kind_of(operator: str) -> str | None:
    """The kind of an operator, by its name with namespace; None if it moves nothing.

    One that moves something and is of no known kind is a kind by its own name, without outer
    underscores.
    """
    namespace, _, name = operator.partition("::")
    name = name.strip("_")
    if namespace not in _NAMESPACES or name in _LOCAL:
        return None
    kinds = (kind for prefix, kind in _PREFIXES.items() if name.startswith(prefix))
    return next(kinds, name)


def _calls(kind: str, arguments: list[Any], result: Any) -> Iterator[tuple[str, int]]:
    """Kind and bytes of each call that one call of an operator stands for."""
    if kind == "batch_p2p_ops":
        directions, _, _, tensors, _ = arguments
        for direction, tensor in zip(directions, tensors, strict=True):
            yield ("send" if direction == "isend" else "recv"), _size(tensor)
    elif kind in _WITHOUT_PAYLOAD:
        yield kind, 0
    elif not _imagined(arguments):
        # Inputs, outputs to write to, and what is returned are each one of these.
        yield kind, max(_size(group) for group in (*arguments, result))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _imagined(value: Any) -> bool:
    """Whether there are tensors without content: then shapes are inferred and nothing moves."""
    return any(t.is_meta or isinstance(t, FakeTensor) for t in _tensors(value))


def _size(value: Any) -> int:
    """Bytes of all tensors in a value."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value))
