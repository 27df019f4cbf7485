"""Reading the list of kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trn_validate import yaml_file
from trn_validate.base import Record
from trn_validate.errors import ConfigError, UsageError
from trn_validate.explain import checked
from trn_validate.kernel_entry import Kernel

LIST = Path(__file__).resolve().parent.parent / "configs" / "kernels.yaml"
"""The list that a plan uses which names no other."""


class KernelFile(Record):
    """A whole list."""

    kernels: Annotated[tuple[Kernel, ...], Field(min_length=1)]


def load_kernels(path: Path = LIST) -> tuple[Kernel, ...]:
    """The kernels of a list, in its order.

    Raises:
        ConfigError: with the place and what is wrong.
    """
    raw = yaml_file.read(path)
    file = checked(KernelFile, raw, where=str(path), see="configs/kernels.yaml for examples")
    twice = [name for name, n in Counter(one.name for one in file.kernels).items() if n > 1]
    if twice:
        raise ConfigError(f"two kernels are named {twice[0]!r}", where=str(path))
    if not any(one.override and one.override.model == "rung" for one in file.kernels):
        raise ConfigError(
            "no kernel has an override that puts it into the plan's model",
            where=str(path),
            todo="An operator that no model calls says nothing about training: add an override.",
        )
    return file.kernels


def named(kernels: tuple[Kernel, ...], name: str) -> Kernel:
    """The kernel of that name.

    Raises:
        UsageError: there is none; it says which there are.
    """
    for kernel in kernels:
        if kernel.name == name:
            return kernel
    known = ", ".join(kernel.name for kernel in kernels)
    raise UsageError(f"there is no kernel {name!r}", where="--kernel", todo=f"There are: {known}.")
