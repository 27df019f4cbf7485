"""What a run found installed, and which of it executed."""

from __future__ import annotations

from collections.abc import Iterable

from trn_validate.verdict import Verdict

EXECUTES = "executes on the device"
"""Stands among the packages, and has the distribution that was found executing."""


def stack_of(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Versions by package, as the processes of these stages found them, in order of name.

    The name of a package does not tell what executes, so that has a row of its own.
    """
    versions: dict[str, str] = {}
    executed = ""
    for verdict in verdicts:
        versions |= verdict.versions
        executed = executed or (verdict.execution.distribution if verdict.execution else "")
    first = {EXECUTES: executed} if executed else {}
    return first | dict(sorted(versions.items()))
