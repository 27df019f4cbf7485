"""The NKI that kernels are written against: the real package, or the interpreter.

A kernel module says ``from trn_validate.kernels.namespace import nisa, nki, nl`` where NKI's own
documentation says ``import nki``, and has one text for both. Nothing is put into
``sys.modules``. Guess: that the NKI compiler resolves these names by the globals of the kernel's
module, as Python does; github.com/aws-neuron/nki-library imports its helpers that way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trn_validate.kernels import interpreter

Tensor = Any
"""A tensor of either; NKI ships no types."""


@dataclass(frozen=True)
class Namespace:
    """Three modules, and why they are not the real ones."""

    nki: Any
    nl: Any
    nisa: Any
    genuine: bool
    reason: str
    """Why the real package was not taken; empty if it was."""


def find(load: Callable[[str], Any] = importlib.import_module) -> Namespace:
    """The real package if it is one, else the interpreter.

    The public package index has a placeholder of this name, which raises on import; a package
    without ``jit`` is no NKI either.
    """
    try:
        nki, nl, nisa = (load(name) for name in ("nki", "nki.language", "nki.isa"))
    except Exception as error:  # a foreign package may raise anything
        reason = f"nki: {type(error).__name__}: {' '.join(str(error).split())}"
    else:
        if callable(getattr(nki, "jit", None)):
            return Namespace(nki, nl, nisa, genuine=True, reason="")
        reason = "nki: imported, but it has no jit"
    return Namespace(interpreter, interpreter.language, interpreter.isa, False, reason)


FOUND = find()
nki = FOUND.nki
nl = FOUND.nl
nisa = FOUND.nisa
