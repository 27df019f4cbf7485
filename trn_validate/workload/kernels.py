"""What this rank's model called of the kernels that were put into it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

from torch import nn

from trn_validate.records import Kernels
from trn_validate.spec import KernelUse


def begin_counting() -> None:
    """Count launches from here on."""
    from trn_validate.kernels import launches

    launches.reset()


def kernels_record(uses: Sequence[KernelUse], model_parts: Iterable[nn.Module]) -> Kernels:
    """Census of the model, sharded or not, and the launches since :func:`begin_counting`.

    torchtitan says nothing when an override matches no node while another does. A subclass of the
    stock module that is not the kernel's, which no override claims, counts as left.
    """
    from trn_validate.kernels import launches
    from trn_validate.kernels.providers import provider

    modules = [pair for part in model_parts for pair in part.named_modules()]
    replaced: dict[str, tuple[str, ...]] = {}
    left: dict[str, tuple[str, ...]] = {}
    for use in uses:
        stock, ours = _class(use.replaces), _class(use.by)
        found = [(fqn, isinstance(one, ours)) for fqn, one in modules if isinstance(one, stock)]
        replaced[use.name] = tuple(fqn for fqn, calls in found if calls)
        left[use.name] = tuple(fqn for fqn, calls in found if not calls)
    chosen = provider()
    return Kernels(
        provider=chosen.name,
        reason=chosen.reason,
        replaced=replaced,
        left=left,
        launches=launches.counts(),
        traced=launches.traces(),
    )


def _class(path: str) -> type[nn.Module]:
    module, _, name = path.partition(":")
    found: type[nn.Module] = getattr(importlib.import_module(module), name)
    return found
