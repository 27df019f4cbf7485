"""The tensor of a kernel: a view of memory with a shape, a dtype and a buffer.

Source of all rules here: api/nki/language/__init__.py, ``NkiTensor`` and ``MemoryRegion``;
get-started/nki-language-guide.rst, "Tensor Values" and "Tensor Indexing".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, cast

import numpy as np
import numpy.typing as npt

from trn_validate.kernels.interpreter.dtypes import Values, int32
from trn_validate.kernels.interpreter.rules import broken, in_subset, require

Marks = npt.NDArray[np.uint8]


class MemoryRegion(Enum):
    """Where a tensor lies."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


ON_CHIP = (MemoryRegion.sbuf, MemoryRegion.psum)
HBM = (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


@dataclass(frozen=True)
class ds:
    """``size`` elements from ``start`` on. Source: api/nki/language/__init__.py, ``ds``."""

    start: int
    size: int


Key = int | slice | ds


class Storage:
    """Memory that views share; while it lives, it is in use."""


class NkiTensor:
    """A view; every index expression is a new one of the same storage, nothing is copied."""

    def __init__(
        self,
        values: Values,
        dtype: str,
        buffer: MemoryRegion,
        *,
        name: str = "",
        marks: Marks | None = None,
        storage: Storage | None = None,
        start: int = 0,
        writable: bool = True,
        indirect: bool = False,
    ) -> None:
        self.values = values
        self.marks = marks
        self.dtype = dtype
        self.buffer = buffer
        self.name = name
        self.storage = storage if storage is not None else Storage()
        self.start = start
        """First partition, on chip."""
        self.writable = writable
        self.indirect = indirect

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes; on chip the first counts partitions."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return self.values.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.values.size

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"{self.name or 'tensor'} ({sizes}) {self.dtype} in {self.buffer.value}"

    def __getitem__(self, key: Key | tuple[Key, ...]) -> NkiTensor:
        """Part of the tensor; an int drops its dim, but never the partitions.

        Source: language guide, "Tensor Indexing"; ``NkiTensor.slice``, "Constraints".

        Raises:
            KernelError: an index or a range that leaves the tensor, or is empty.
        """
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > self.ndim:
            raise broken("index", repr(self), f"{len(keys)} indices for {self.ndim} dims")
        found: list[int | slice] = []
        for dim, one in enumerate(keys):
            first, size = _bounds(self, dim, one)
            keeps = not isinstance(one, int) or (dim == 0 and self.buffer in ON_CHIP)
            found.append(slice(first, first + size) if keeps else first)
        at = tuple(found)
        start = self.start
        if self.buffer in ON_CHIP:
            start += cast(slice, found[0]).start
        view = self._view(self.values[at], None if self.marks is None else self.marks[at], start)
        in_subset(
            view.ndim >= (2 if self.buffer in ON_CHIP else 1),
            self,
            "an index that drops the last dim",
            ("ranges that keep it",),
        )
        return view

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeat a dim of size 1; the view can only be read.

        Raises:
            KernelError: the dim has another size, or is the partitions of a tensor on chip.
        """
        require(self.shape[dim] == 1, "broadcast of size 1", self, f"dim {dim}: {self.shape[dim]}")
        require(dim != 0 or self.buffer in HBM, "no broadcast of partitions", self, f"to {size}")
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        marks = None if self.marks is None else np.broadcast_to(self.marks, shape)
        view = self._view(np.broadcast_to(self.values, shape), marks, self.start)
        view.writable = False
        return view

    def select(self, dim: int, index: int | NkiTensor) -> NkiTensor:
        """One element of ``dim``, which is dropped; the index may be a (1, 1) tile, read now.

        Raises:
            KernelError: an index out of bounds, a tile of another shape or place, or a second
                dynamic select.
        """
        in_subset(self.buffer in HBM and dim == 0, self, f"select of dim {dim}", ("0 in HBM",))
        if isinstance(index, int):
            return self[index]
        fits = index.shape == (1, 1) and index.dtype == int32
        require(
            fits and index.buffer is MemoryRegion.sbuf,
            "dynamic index",
            index,
            "not (1, 1) int32 in sbuf",
        )
        require(not self.indirect, "one dynamic select", self, "is a dynamic view already")
        row = int(index.values[0, 0])
        require(
            0 <= row < self.shape[0],
            "bounds",
            self,
            f"dynamic index {row} of {self.shape[0]}",
        )
        view = self[row]
        view.indirect = True
        return view

    def _view(self, values: Values, marks: Marks | None, start: int) -> NkiTensor:
        return NkiTensor(
            values,
            self.dtype,
            self.buffer,
            name=self.name,
            marks=marks,
            storage=self.storage,
            start=start,
            writable=self.writable,
            indirect=self.indirect,
        )


def _bounds(tensor: NkiTensor, dim: int, key: Key) -> tuple[int, int]:
    """First element and number of elements that ``key`` takes of ``dim``."""
    total = tensor.shape[dim]
    if isinstance(key, int):
        first, size = key, 1
    elif isinstance(key, ds):
        first, size = key.start, key.size
    else:
        in_subset(
            isinstance(key, slice) and key.step is None,
            tensor,
            key,
            ("int", "a:b", "ds"),
        )
        first = 0 if key.start is None else key.start
        size = (total if key.stop is None else key.stop) - first
    require(
        first >= 0 and size > 0 and first + size <= total,
        "bounds",
        tensor,
        f"{first}:{first + size} of dim {dim}, which has {total}",
    )
    return first, size


def _refuse(operator: str) -> object:
    def method(self: NkiTensor, *others: object) -> NoReturn:
        """No operator works on a tensor. Source: get-started/nki-language-guide.rst, the note
        of "Tensor Values": what touches contents is an instruction."""
        raise broken("no Python operators on tensors", repr(self), operator)

    return method


_ARITHMETIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or")
_OTHERS = ("neg", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne", "bool", "float", "int")
_CONTAINER = ("index", "iter", "len", "array", "setitem")
_OPERATORS = (
    *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r", "i")),
    *(f"__{name}__" for name in (*_OTHERS, *_CONTAINER)),
)
# Set from outside the class: an __eq__ in its body would take away the hash by identity.
for _name in _OPERATORS:
    setattr(NkiTensor, _name, _refuse(_name))
