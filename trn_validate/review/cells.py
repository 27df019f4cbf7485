"""Tables of a report and what stands in their cells, the same in Markdown and on the page."""

from __future__ import annotations

from dataclasses import dataclass

from trn_validate.paths import show_bytes
from trn_validate.verdict import Verdict

LOSS, GRAD_NORM = "loss against the reference", "grad norm against the reference"
GRADIENT, PARAMETERS = "gradient of step 1", "parameters after the last step"
"""Endings of the names of the four checks that every comparison owes."""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row names it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    bad: frozenset[int] = frozenset()
    """Rows that say no."""


def number(value: int | float | str) -> str:
    """A measured value or a limit."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def deviation(verdict: Verdict, kind: str) -> str:
    """The largest of the verdict's deviations of that kind, with its limit."""
    # The whole of it: the control's noise has checks whose names end in the same words.
    found = [c for c in verdict.checks if c.name.partition(": ")[2] == kind]
    numbers = [c for c in found if isinstance(c.measured, int | float)]
    if not numbers:
        return "-"
    worst = max(numbers, key=lambda c: (not c.passed, float(c.measured)))
    return f"{worst.measured:.2e} ({worst.limit:.1e})" if worst.limit else f"{worst.measured} (0)"


def communication(verdict: Verdict) -> str:
    """Calls and bytes by kind."""
    prefix = "communication_calls."
    kinds = [name.removeprefix(prefix) for name in verdict.measures if name.startswith(prefix)]
    parts = [
        f"{kind} {verdict.measures[prefix + kind]:.0f} "
        f"({show_bytes(round(verdict.measures.get(f'communication_bytes.{kind}', 0.0)))})"
        for kind in sorted(kinds)
    ]
    return ", ".join(parts) or "-"
