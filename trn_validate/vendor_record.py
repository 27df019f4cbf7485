"""What the vendor's own run left: a record beside the gate, which is no verdict and opens nothing.

Its numbers are read from a log, since the run is the vendor's, unmodified, and writes no others.
That is why nothing in the gate may rest on it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

from trn_validate.base import Real, Record
from trn_validate.launch import Cause
from trn_validate.paths import folder_errors
from trn_validate.verdict import Host, Outcome

FOLDER = "vendor.run"
"""Folder of the run that its attempts are kept in, named like a stage's."""

FILE = "record.json"

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STEP = re.compile(
    r"(?<!validate )\bstep: +([0-9]+) +loss: +([-+a-zA-Z0-9.]+) +grad_norm: +([-+a-zA-Z0-9.]+)"
)
"""A line of torchtitan 0.3.0 (components/metrics.py).

Guess: the fork prints the line of a step as upstream does.
"""


class LoggedStep(Record):
    """One step as the log shows it, rounded as it was printed."""

    step: int
    loss: Real
    grad_norm: Real


class VendorRecord(Record):
    """How the vendor's own run went."""

    schema_version: Literal["1"] = "1"
    fork: str
    """Version of the distribution torchtitan-neuron; ``absent`` where it names none."""
    argv: tuple[str, ...]
    variables: dict[str, str]
    """What it was given in the environment on top of what was there."""
    wanted: int
    """Steps that were asked for."""
    steps: tuple[LoggedStep, ...]
    """Every line of a step in the log; several ranks may print the same one."""
    cause: str
    exit_status: int | None
    seconds: float
    what: str
    log: str
    """Its redacted log, relative to the run folder."""
    host: Host
    started_at: str

    @property
    def not_finite(self) -> tuple[LoggedStep, ...]:
        """Steps whose loss or gradient norm is no number."""
        return tuple(
            s for s in self.steps if not (math.isfinite(s.loss) and math.isfinite(s.grad_norm))
        )

    @property
    def outcome(self) -> Outcome:
        """Failed by a number that is not finite; passed only with every step and exit status 0."""
        if self.not_finite:
            return Outcome.FAILED
        whole = {s.step for s in self.steps} == set(range(1, self.wanted + 1))
        ended = self.cause == Cause.COMPLETED and self.exit_status == 0
        return Outcome.PASSED if whole and ended and self.steps else Outcome.ERROR


def logged_steps(log: Path) -> tuple[LoggedStep, ...]:
    """Every step that a log tells of; none where there is no log."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            matches = (_STEP.search(_ESCAPE.sub("", line)) for line in lines)
            return tuple(_step(*match.groups()) for match in matches if match)
    except OSError:
        return ()


def _step(number: str, loss: str, grad_norm: str) -> LoggedStep:
    return LoggedStep(step=int(number), loss=_number(loss), grad_norm=_number(grad_norm))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # A word where a number belongs is no number, and so not finite.
        return math.nan


def newest_record(folder: Path) -> VendorRecord | None:
    """The newest whole record of a run folder.

    Raises:
        FolderError: the folder cannot be read.
    """
    attempts = folder / FOLDER
    if not attempts.is_dir():
        return None
    with folder_errors(attempts):
        numbers = sorted(
            (int(p.name) for p in attempts.iterdir() if p.name.isdigit()), reverse=True
        )
    for number in numbers:
        try:
            text = (attempts / str(number) / FILE).read_text(encoding="utf-8")
            return VendorRecord.model_validate_json(text)
        except (OSError, ValueError):
            # Killed before its record was written; the one before it still stands.
            continue
    return None
