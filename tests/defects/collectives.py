"""Faults of communication, put in place of torch.distributed's own functions in a probe's ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from trn_validate.spec import CollectivesSpec

_ORIGINAL: dict[str, Callable[..., Any]] = {}


def _replace(name: str, function: Callable[..., Any]) -> None:
    _ORIGINAL[name] = getattr(dist, name)
    setattr(dist, name, function)


def _blocking(name: str, *arguments: Any, **named: Any) -> None:
    _ORIGINAL[name](*arguments, **(named | {"async_op": False}))


def wrong(spec: CollectivesSpec) -> None:
    """Every kind of operation is wrong in a way of its own, and none says so."""

    def all_reduce(tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
        if dist.get_rank() == 1:  # one rank counts twice
            tensor.mul_(2)
        return _ORIGINAL["all_reduce"](tensor, *rest, **named)

    def broadcast(tensor: torch.Tensor, src: int, **named: Any) -> Any:
        return None  # whoever receives keeps what was there

    def all_gather_into_tensor(output: torch.Tensor, own: torch.Tensor, **named: Any) -> None:
        _blocking("all_gather_into_tensor", output, own, **named)
        output.copy_(output.roll(own.numel()))  # the parts in another order

    def reduce_scatter_tensor(output: torch.Tensor, own: torch.Tensor, **named: Any) -> None:
        _blocking("reduce_scatter_tensor", output, own.roll(output.numel()), **named)

    def all_to_all_single(
        output: torch.Tensor, own: torch.Tensor, *rest: Any, **named: Any
    ) -> None:
        _blocking("all_to_all_single", output, own, *rest, **named)
        own.zero_()  # right, but the input is gone

    def all_gather(outputs: list[torch.Tensor], own: torch.Tensor, **named: Any) -> None:
        for one in outputs:
            one.zero_()

    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        return []  # nothing is sent

    def broadcast_object_list(objects: list[Any], *rest: Any, **named: Any) -> None:
        objects[0] = {"rank": -1}

    def barrier(group: Any = None, **named: Any) -> Any:
        if group is not None:
            raise RuntimeError("Barrier is implemented only for default group")
        return _ORIGINAL["barrier"](**named)

    def all_to_all(outputs: list[torch.Tensor], inputs: list[torch.Tensor], **named: Any) -> None:
        for one, other in zip(outputs, inputs, strict=True):
            one.resize_(other.shape).copy_(other)  # everybody keeps its own

    for function in (
        all_reduce,
        broadcast,
        all_gather_into_tensor,
        reduce_scatter_tensor,
        all_to_all_single,
        all_to_all,
        all_gather,
        batch_isend_irecv,
        broadcast_object_list,
        barrier,
    ):
        _replace(function.__name__, function)


def stuck(spec: CollectivesSpec) -> None:
    """In the first launch a rank hangs before it gathers, in the second another one dies."""

    def all_gather_into_tensor(*arguments: Any, **named: Any) -> Any:
        if dist.get_rank() == 1:
            time.sleep(600)
        return _ORIGINAL["all_gather_into_tensor"](*arguments, **named)

    def reduce_scatter_tensor(*arguments: Any, **named: Any) -> Any:
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        return _ORIGINAL["reduce_scatter_tensor"](*arguments, **named)

    if spec.name == "ranks-2":
        _replace("all_gather_into_tensor", all_gather_into_tensor)
    elif spec.name == "ranks-2-again-1":
        _replace("reduce_scatter_tensor", reduce_scatter_tensor)


def elsewhere(spec: CollectivesSpec) -> None:
    """The process group is not made."""

    def init_process_group(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("Failed to execute the device barrier 2")

    _replace("init_process_group", init_process_group)
