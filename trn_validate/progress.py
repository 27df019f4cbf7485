"""What a person sees while stages run: a live line on a terminal, plain lines elsewhere.

Everything goes to stderr; stdout is for results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trn_validate.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from rich.status import Status

_MARK = {
    Outcome.PASSED: "ok",
    Outcome.FAILED: "FAILED",
    Outcome.ERROR: "ERROR",
    Outcome.BLOCKED: "blocked",
    Outcome.UNSUPPORTED: "unsupported",
}
_COLOUR = {Outcome.PASSED: "green", Outcome.FAILED: "red", Outcome.ERROR: "red"}


class Progress:
    """Says which stage runs and what it is at."""

    def __init__(self, total: int, *, quiet: bool = False) -> None:
        self.total = total
        self.quiet = quiet
        self.done = 0
        self.live = sys.stderr.isatty() and not quiet
        self._status: Status | None = None
        self._label = ""
        self._began = time.monotonic()

    @contextmanager
    def stage(self, name: str, asks: str) -> Iterator[None]:
        """Show a stage while it runs."""
        self.done += 1
        self._label = f"[{self.done}/{self.total}] {name}"
        self._began = time.monotonic()
        if not self.live:
            self._line(f"{self._label}: {asks}")
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(f"{self._label}: {asks}") as self._status:
            yield
        self._status = None

    def say(self, text: str) -> None:
        """Tell what the stage is at."""
        if self._status is not None:
            self._status.update(f"{self._label}: {text}")
        elif not self.live:
            self._line(f"    {time.monotonic() - self._began:6.1f} s  {text}")

    def result(self, verdict: Verdict, *, reused: bool = False) -> None:
        """Tell how a stage ended."""
        passed = sum(check.passed for check in verdict.checks)
        checks = f"{passed}/{len(verdict.checks)} checks" if verdict.checks else ""
        note = "kept from an earlier run" if reused else f"{verdict.seconds:.1f} s"
        if verdict.blocked_by:
            note, checks = f"by {verdict.blocked_by}", ""
        label = f"{_MARK[verdict.outcome]:<11} {verdict.stage:<24} {checks:<16} {note}"
        if not self.live:
            self._line(label)
            return
        from rich.console import Console

        Console(stderr=True).print(
            label, style=_COLOUR.get(verdict.outcome, ""), highlight=False, markup=False
        )

    def skip(self) -> None:
        """Count a stage that does not run."""
        self.done += 1

    def line(self, text: str) -> None:
        """A line of its own."""
        self._line(text)

    def _line(self, text: str) -> None:
        if self.quiet:
            return
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            # Whoever watched has gone; what runs is worth finishing.
            self.quiet = True
