"""What a launch is asked and what it answers; who carries it out is a :class:`Launcher`.

The local launcher is in :mod:`trn_validate.launch_local`, the one that spreads a launch over the
nodes of a Slurm allocation in :mod:`trn_validate.launch_slurm`. :class:`FakeLauncher` is part of
the product, so that stages can be tested without a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Cause(StrEnum):
    """How a launch ended, with the sentence that explains the word."""

    COMPLETED = "completed", "every rank wrote its closing line and the exit status is 0"
    TEARDOWN = "teardown", "the results are complete, the process group crashed on its way out"
    IMPORT = "import", "a package did not import"
    CONFIGURATION = "configuration", "the trainer refused its configuration"
    OUT_OF_MEMORY = "out_of_memory", "no memory was left, on the device or on the host"
    NO_SPACE = "no_space", "no space was left on a file system"
    PORT = "port", "the rendezvous port could not be bound or reached"
    KILLED = "killed", "a process was killed from outside"
    HANG = "hang", "nothing was written for as long as the silence limit, or a collective timed out"
    TIMEOUT = "timeout", "the wall limit was reached"
    NODE = "node", "a node did not carry out its part of the launch"
    INTERRUPTED = "interrupted", "the pipeline was interrupted"
    CRASH = "crash", "a rank raised or died for another reason"

    phrase: str

    def __new__(cls, value: str, phrase: str) -> Cause:
        """Make a member that carries its phrase."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.phrase = phrase
        return member

    @property
    def usable(self) -> bool:
        """Whether the records of such a launch may be judged."""
        return self in (Cause.COMPLETED, Cause.TEARDOWN)


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One process tree to start: an argument vector, never a shell string."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    """Private folder of this launch: output.log, stacks, ranks' logs."""
    ranks: int = 0
    """Ranks that have to write a closing line to ``records``; 0 for a plain process."""
    nodes: int = 1
    """Nodes that it runs on: each carries out ``argv`` once, with an even share of the ranks.

    Words of :mod:`trn_validate.node` in ``argv`` stand for what differs from node to node.
    """
    records: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the pipeline."""
    wall_seconds: float
    silence_seconds: float
    """Longest time in which neither a log nor a record grows."""
    grace_seconds: float = 10.0
    """Between TERM and KILL."""


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How a launch ended. Nothing of it is alive any more."""

    name: str
    argv: tuple[str, ...]
    cause: Cause
    exit_status: int | None
    """As a shell would say it; None where a limit ended it."""
    seconds: float
    what: str = ""
    """One line: what went wrong."""
    rank: int | None = None
    """The first rank that failed."""
    node: str | None = None
    """The node where it failed; None where there is only this machine."""
    log: Path | None = None
    """The log to read: that of the first failing rank where there is one."""
    excerpt: str = ""
    """Last lines of that log, or the stacks of a rank that hung."""


class Launcher(Protocol):
    """Starts a process tree, bounds it, and tells how it ended."""

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Carry out ``request``; returns only when nothing of it is alive.

        Raises:
            Interrupted: the pipeline got a signal; the launch was ended first.
        """
        ...

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """Carry out several at once and wait for all of them, in the order given."""
        ...


class FakeLauncher:
    """A launcher whose answers come from a function, for tests.

    The handler may write records into ``request.records`` before it answers.
    """

    def __init__(self, handler: Callable[[LaunchRequest], LaunchResult]) -> None:
        self.handler = handler
        self.requests: list[LaunchRequest] = []

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Hand ``request`` to the handler."""
        self.requests.append(request)
        return self.handler(request)

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """Hand each to the handler, one after the other."""
        return tuple(self.launch(request) for request in requests)
