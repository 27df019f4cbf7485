"""The program that runs now: its place in the grid, and what it has allocated.

Programs of one launch run one after the other. So that this hides no race, each element of
shared memory remembers which program wrote it: another may neither write nor read it. There is
no barrier in the interpreted part.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trn_validate.errors import KernelError
from trn_validate.kernels.interpreter.rules import PSUM_BANKS, SBUF_BYTES, require

if TYPE_CHECKING:
    from trn_validate.kernels.interpreter.tensor import NkiTensor


@dataclass
class Space:
    """On-chip memory of one program, in ``unit`` per partition."""

    name: str
    unit: str
    limit: int
    used: int = 0

    def take(self, owner: object, amount: int, operand: str) -> None:
        """Hold ``amount`` for as long as ``owner`` lives.

        Source: get-started/about/memory-hierarchy-overview.rst (live data has to fit, or the
        compiler spills). Guess: the life of the Python object stands for what the compiler
        holds to be live.

        Raises:
            KernelError: the live tensors do not fit.
        """
        require(
            self.used + amount <= self.limit,
            f"{self.name} capacity",
            operand,
            f"{amount} {self.unit} beside {self.used} live, of {self.limit}",
        )
        self.used += amount
        weakref.finalize(owner, self._give_back, amount)

    def _give_back(self, amount: int) -> None:
        self.used -= amount


@dataclass
class Program:
    """One of the programs of a launch."""

    index: int
    count: int
    shared: list[NkiTensor]
    """Tensors in shared memory, in the order in which the first program allocated them."""
    next_shared: int = 0
    psum: Space = field(default_factory=lambda: Space("PSUM", "banks", PSUM_BANKS))
    sbuf: Space = field(default_factory=lambda: Space("SBUF", "bytes", SBUF_BYTES))


class _Running(threading.local):
    program: Program | None = None


_running = _Running()


def current() -> Program:
    """The program that runs.

    Raises:
        KernelError: no kernel runs.
    """
    if _running.program is None:
        raise KernelError("NKI was called outside a kernel", todo="Launch a function of nki.jit.")
    return _running.program


@contextmanager
def running(program: Program) -> Iterator[None]:
    """Let ``program`` be the one that runs.

    Raises:
        KernelError: a kernel launches a kernel.
    """
    if _running.program is not None:
        raise KernelError("a kernel was launched inside a kernel", todo="Call it as a function.")
    _running.program = program
    try:
        yield
    finally:
        _running.program = None
