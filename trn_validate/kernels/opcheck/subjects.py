"""From an entry of the list of kernels to what is checked."""

from __future__ import annotations

import importlib
from functools import partial

from trn_validate.errors import KernelError
from trn_validate.kernel_entry import Kernel
from trn_validate.kernels.opcheck.subject import Function, Subject


def subject_of(entry: Kernel) -> Subject:
    """What the entry names, imported.

    Raises:
        KernelError: a module cannot be imported, or has no such function.
    """
    shapes = entry.shapes
    return Subject(
        name=entry.name,
        function=_function(entry, entry.op),
        reference=_function(entry, entry.reference),
        shapes={
            "ragged": shapes.ragged,
            "one row": shapes.one_row,
            "many rows": shapes.many_rows,
            "small": shapes.small,
        },
        launches=entry.launches,
        scaled=entry.scaled,
        large=entry.large,
        depth=entry.depth,
        centred=entry.centred,
    )


def _function(entry: Kernel, path: str) -> Function:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        # Whatever a foreign module raises while it is imported is what its author has to see.
        raise KernelError(
            f"{path} cannot be imported ({type(error).__name__}: {error})",
            where=f"kernel {entry.name}",
            todo="Name module:function as Python imports it, with its folder on PYTHONPATH.",
        ) from error
    if not callable(found):
        raise KernelError(f"{path} is no function", where=f"kernel {entry.name}")
    return partial(found, **entry.constants) if entry.constants else found
