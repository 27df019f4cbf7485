"""Reading neuron-monitor's records while a launch runs, and summing them by process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from trn_validate.neuron.finding import Finding, found
from trn_validate.neuron.neuron_monitor import NAME, Period, is_record, sample_of

_MOST_PENDING = 2**22
"""Characters of a record that is not complete yet; a whole one of 16 devices has 30,000."""


@dataclass
class Tally:
    """Sum over all periods of one process."""

    pid: int
    executions: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    periods: int = 0
    unread: int = 0
    """Periods that the tool had no counts of; the sums lack them."""

    def add(self, period: Period) -> None:
        """Add one period."""
        if period.error:
            self.unread += 1
            return
        self.periods += 1
        for total, counts in ((self.executions, period.executions), (self.errors, period.errors)):
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count


@dataclass
class Stream:
    """Takes the output as it comes, in pieces that may end anywhere."""

    tallies: dict[int, Tally] = field(default_factory=dict)
    records: int = 0
    broken: list[str] = field(default_factory=list)
    """Lines that were no record."""
    _line: str = ""
    _pending: str = ""

    def feed(self, text: str) -> None:
        """Add what was printed since the last call."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._take(line)

    def close(self) -> None:
        """Say that nothing more comes: a record that is not whole is broken."""
        last, self._line = self._line, ""
        self._take(last)
        self._drop()

    def findings(self) -> tuple[Finding, ...]:
        """What was printed and was no record."""
        if not self.broken:
            return ()
        what = f"{len(self.broken)} lines that are no record, beside {self.records} records"
        return (found("tool_output_noisy", what, NAME, raw="\n".join(self.broken)),)

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        # A record begins with its first key; what was pending then will never be whole.
        if self._pending and line.startswith('{"'):
            self._drop()
        self._pending += line + "\n"
        try:
            value = json.loads(self._pending)
        except (ValueError, RecursionError):
            opened = self._pending.lstrip().startswith("{")
            # Records of several lines are not documented, and cost nothing to read.
            if not opened or len(self._pending) > _MOST_PENDING:
                self._drop()
            return
        read = sample_of(value) if is_record(value) else None
        if read is None or read.value is None:
            self._drop()
            return
        self._pending = ""
        self.records += 1
        for period in read.value.periods:
            self.tallies.setdefault(period.pid, Tally(period.pid)).add(period)

    def _drop(self) -> None:
        if self._pending.strip():
            self.broken.append(self._pending.rstrip("\n"))
        self._pending = ""
