"""What a stage is, what it is given, and what it hands back.

A stage measures and makes checks; it never says how it went. The gate turns its
:class:`Findings` into a verdict, whose outcome follows from the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.distances import Measuring, Meter
from trn_validate.errors import MeasurementError
from trn_validate.launch import Launcher, LaunchRequest, LaunchResult
from trn_validate.observed import Looking, Observer
from trn_validate.run import Attempt, Run
from trn_validate.target import Choice
from trn_validate.verdict import (
    Capability,
    Command,
    Compared,
    Execution,
    Layout,
    Problem,
    Verdict,
)


@dataclass(kw_only=True)
class Findings:
    """What a stage found; every field is as in :class:`trn_validate.verdict.Verdict`."""

    expects: tuple[str, ...]
    checks: list[Check] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    layout: Layout | None = None
    device: str = "none"
    execution: Execution | None = None
    measures: dict[str, float] = field(default_factory=dict)
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)
    capabilities: list[Capability] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    """Files and folders that the verdict rests on, relative to the run folder."""
    problem: Problem | None = None
    unsupported: str | None = None


class Unmeasured(MeasurementError):
    """A launch ended in a way that leaves nothing to judge, or only that a number is not finite."""

    def __init__(self, problem: Problem, checks: tuple[Check, ...] = ()) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.checks = checks
        """With a check that says no, the verdict is ``failed`` and not ``error``."""


@dataclass(kw_only=True)
class Context:
    """What a stage is given while it runs."""

    plan: Plan
    stage: str
    run: Run
    attempt: Attempt
    launcher: Launcher
    choice: Choice
    """The signs that the host showed, and the target that they select."""
    earlier: Mapping[str, Verdict]
    say: Callable[[str], None]
    meter: Meter = field(default_factory=Measuring)
    """Tells how far tensors are apart, and keeps it for whoever has no tensors."""
    observer: Observer = field(default_factory=Looking)
    """Through it goes every look at what is no record of a rank, so that it is kept."""
    commands: list[Command] = field(default_factory=list)
    ended: list[LaunchResult] = field(default_factory=list)
    """Every launch that was noted, as its launcher told of it."""
    launch_seconds: float = 0.0
    hooks: set[str] = field(default_factory=set)
    """Hooks of the test suite that any rank of the stage said were active."""
    pids: set[int] = field(default_factory=set)
    """Process ids of all its ranks, by which a device's counts are told from other processes'."""

    def note(self, *results: LaunchResult) -> None:
        """Put finished launches on record."""
        self.ended += results
        for result in results:
            self.commands.append(
                Command(
                    name=result.name,
                    argv=result.argv,
                    exit_status=result.exit_status,
                    seconds=result.seconds,
                    cause=result.cause.value,
                )
            )
        self.launch_seconds += max((result.seconds for result in results), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a stage's launches would write: enough to say what would run, without running it."""

    plan: Plan
    private: Path
    """Private folder of the attempt."""
    seed: Path
    """Seed checkpoint of the stage's ladder; it may not be there yet."""


class Stage(Protocol):
    """One stage of one plan."""

    @property
    def id(self) -> str:
        """Name of the verdict."""
        ...

    @property
    def asks(self) -> str:
        """The question that it answers, for people."""
        ...

    def reads(self, plan: Plan) -> object:
        """The part of the plan that decides what it does; a change makes its verdict stale."""
        ...

    def external(self, plan: Plan) -> dict[str, str]:
        """Digests of what the plan names from outside, by name."""
        ...

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """What it would start, in order."""
        ...

    def run(self, context: Context) -> Findings:
        """Measure.

        Raises:
            Unmeasured: a launch failed.
            EvidenceError: an artifact of an earlier stage is not what its verdict says.
        """
        ...


StagesOf = Callable[[Plan], Sequence[Stage]]
"""The stages of a plan, in gate order: what the command line hands over."""


@dataclass(frozen=True)
class Family:
    """An entry of the ordered tuple: a name, a question, and the stages it has in a plan."""

    name: str
    asks: str
    members: Callable[[Plan], tuple[Stage, ...]]
