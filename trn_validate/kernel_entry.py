"""A kernel as configs/kernels.yaml lists it.

Nothing here imports torch: the pipeline reads the list, and the process that checks one kernel
is given its entry.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trn_validate.base import Record
from trn_validate.spec import DTYPE, KernelUse

_TILE = 128
"""Partitions of SBUF, so rows of a tile (nki/api/nki/nki.language.tile_size.rst, pmax)."""

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
_Import = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
_Path = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
_Size = Annotated[int, Field(ge=1)]
_Shape = Annotated[tuple[_Size, ...], Field(min_length=1)]
_Tensors = Annotated[tuple[_Shape, ...], Field(min_length=1)]


class Shapes(Record):
    """Shapes of the tensors that the operator takes, in four places where kernels go wrong."""

    ragged: _Tensors
    """More than 128 rows, and no dim of the first tensor a multiple of 128."""
    one_row: _Tensors
    """The first tensor has one row; some hundred numbers, or the ratio of two errors is chance."""
    many_rows: _Tensors
    """More than two blocks of 128 rows."""
    small: _Tensors
    """A few numbers: each of them is moved in turn, to take differences."""

    @model_validator(mode="after")
    def _as_named(self) -> Shapes:
        counts = {len(one) for one in (self.ragged, self.one_row, self.many_rows, self.small)}
        if len(counts) > 1:
            raise ValueError("the four have different numbers of tensors")
        if self.ragged[0][0] <= _TILE or not all(size % _TILE for size in self.ragged[0]):
            raise ValueError(f"ragged is {self.ragged[0]}: more than 128 rows, no multiple of 128")
        if self.one_row[0][0] != 1:
            raise ValueError(f"one_row is {self.one_row[0]}: its first dim has to be 1")
        if self.many_rows[0][0] <= 2 * _TILE:
            raise ValueError(f"many_rows is {self.many_rows[0]}: more than 256 rows")
        return self


class Override(Record):
    """How a kernel comes into a model."""

    path: _Path
    """Import path of torchtitan's override, as its ``override.imports`` takes it."""
    replaces: _Import
    """The module whose instances could call the kernel."""
    by: _Import
    """Its subclass that does."""
    model: Literal["rung", "experts"] = "rung"
    """Which model it is tried in: the plan's, or a small mixture of experts of our own."""


class Kernel(Record):
    """One kernel: the operator, what it is held against, and on which inputs."""

    name: _Name
    op: _Import
    """A function of float tensors, which all get gradients, that gives one tensor."""
    reference: _Import
    """The same in plain torch, for any float dtype."""
    constants: dict[str, float] = Field(default_factory=dict)
    """Keyword arguments of both."""
    launches: Annotated[dict[str, _Size], Field(min_length=1)]
    """Launches of one forward and backward, by the name that they are counted under."""
    shapes: Shapes
    dtypes: Annotated[tuple[DTYPE, ...], Field(min_length=1)] = ("float32", "bfloat16")
    scaled: tuple[int, ...] = (0,)
    """The tensors that a case scales; the others are near 1, or of the size of 1 / sqrt(n)."""
    centred: tuple[int, ...] = ()
    """The tensors that lie around 1, as the weight of a norm does."""
    large: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e4
    """Scale of large inputs."""
    depth: _Size = 1
    """Terms of the longest sum behind a value, where kernel and torch take it in other orders."""
    override: Override | None = None

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that the entry names: a change of one makes a verdict stale."""
        named = [self.op, self.reference]
        if self.override is not None:
            path = self.override.path.rpartition(".")[0]
            named += [path, self.override.replaces, self.override.by]
        return tuple(sorted({name.partition(":")[0] for name in named}))

    @property
    def use(self) -> KernelUse:
        """What the ranks of a model that calls it are told.

        Raises:
            ValueError: the entry has no override.
        """
        if self.override is None:
            raise ValueError(f"{self.name} has no override")
        return KernelUse(
            name=self.name,
            override=self.override.path,
            replaces=self.override.replaces,
            by=self.override.by,
            launches=self.launches,
        )
