from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trn_validate.kernels import interpreter
from trn_validate.kernels.namespace import find


def loader(**modules: Any) -> Callable[[str], Any]:
    """Imports what is given, and nothing else."""

    def load(name: str) -> Any:
        found = modules.get(name.replace(".", "_"))
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return found

    return load


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (loader(), "No module named 'nki'"),
        (loader(nki=ImportError("WRONG PACKAGE\n see the vendor's index")), "WRONG PACKAGE see"),
        (loader(nki=RuntimeError("no driver")), "RuntimeError: no driver"),
        (loader(nki=SimpleNamespace(jit=len)), "No module named 'nki.language'"),
        (loader(nki=object(), nki_language=object(), nki_isa=object()), "it has no jit"),
    ],
    ids=["absent", "placeholder", "broken", "half", "another package"],
)
def test_what_is_no_nki_is_absent_and_says_why(load: Callable[[str], Any], reason: str) -> None:
    found = find(load)
    assert (found.nki, found.genuine) == (interpreter, False)
    assert reason in found.reason and "\n" not in found.reason


def test_the_real_package_is_taken() -> None:
    nki = SimpleNamespace(jit=lambda function: function)
    found = find(loader(nki=nki, nki_language="nl", nki_isa="nisa"))
    assert (found.nki, found.nl, found.nisa) == (nki, "nl", "nisa")
    assert found.genuine and found.reason == ""
