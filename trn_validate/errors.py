"""Every error that a user can cause, as one tree.

::

    TrnValidateError             exit status
      UsageError                 2   the request cannot be carried out as written
        ConfigError              2   a plan that cannot hold
        FolderError              2   a folder that cannot be written, or is full
      DeviceAbsent               3   the plan's device is not on this machine
      MeasurementError           4   a stage could not measure (crash, hang, no memory)
        KernelError              4   a kernel that breaks a rule, or that cannot be launched
      EvidenceError              5   a verdict that is stale, foreign or cannot be read
      Interrupted              130   a signal ended the run (143 for SIGTERM)

A message says what was wrong, where, and what to do. A class carries the exit
status of the process that ends with it.
"""

from __future__ import annotations

import signal
from typing import ClassVar


class TrnValidateError(Exception):
    """The root: a problem with a place and a remedy."""

    exit_status: ClassVar[int] = 4

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.todo = todo

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" {self.todo}" if self.todo else ""
        end = "" if self.what.endswith((".", "?", "!")) else "."
        return f"{place}{self.what}{end}{remedy}"


class UsageError(TrnValidateError):
    """The request cannot be carried out as written."""

    exit_status: ClassVar[int] = 2


class ConfigError(UsageError):
    """A plan that is malformed, or that cannot hold."""


class FolderError(UsageError):
    """A folder that cannot be written, or whose file system is full."""


class DeviceAbsent(TrnValidateError):
    """The device that the plan asks for is not on this machine."""

    exit_status: ClassVar[int] = 3


class MeasurementError(TrnValidateError):
    """A stage could not measure; its verdict is ``error``, never ``failed``."""

    exit_status: ClassVar[int] = 4


class KernelError(MeasurementError):
    """A kernel that breaks a rule of its language, or that cannot be launched."""


class EvidenceError(TrnValidateError):
    """A verdict that is stale, foreign, altered, or cannot be read."""

    exit_status: ClassVar[int] = 5


class Interrupted(TrnValidateError):
    """A signal ended the run."""

    def __init__(self, signum: int) -> None:
        super().__init__(
            f"interrupted by {signal.Signals(signum).name}",
            todo="Run the same command again: finished stages are kept.",
        )
        self.signum = signum

    @property
    def status(self) -> int:
        """Exit status by the shell's convention, 128 + signal number."""
        return 128 + self.signum


def exit_status(error: TrnValidateError) -> int:
    """Exit status of the process that ends with ``error``."""
    return error.status if isinstance(error, Interrupted) else error.exit_status
