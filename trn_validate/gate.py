"""The gate: a line of stages, each of which runs only if all before it opened it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trn_validate.config import Plan
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.freshness import Freshness, Inputs, State, freshness, inputs
from trn_validate.run import Run
from trn_validate.stage import Stage
from trn_validate.verdict import Outcome, Verdict

DEVICE_ABSENT = "device_absent"
"""Cause that environment.device gives where the plan's device is not on the machine at all."""

PASSED, FAILED, ABSENT, ERROR, STALE = 0, 1, 3, 4, 5


@dataclass(frozen=True)
class Standing:
    """How one stage stands now."""

    stage: Stage
    verdict: Verdict | None
    digest: str | None
    """sha256 of the verdict's file."""
    expected: Inputs
    freshness: Freshness
    opens: bool
    """Whether the verdict is fresh and opens the gate."""


def opens(plan: Plan, verdict: Verdict) -> bool:
    """Whether a verdict lets the next stage run: passed, or unsupported and accepted by name."""
    if verdict.outcome is Outcome.UNSUPPORTED:
        return verdict.stage in plan.accept_unsupported
    return verdict.outcome is Outcome.PASSED


class Gate:
    """The stages of a plan in order, and how each stands in a run.

    Args:
        code: digest of the product's own sources.
        environment: the fingerprint of the machine.
    """

    def __init__(
        self,
        plan: Plan,
        stages: Sequence[Stage],
        run: Run,
        *,
        code: str,
        environment: Mapping[str, str],
    ) -> None:
        self.plan = plan
        self.stages = tuple(stages)
        self.run = run
        self.code = code
        self.environment = environment

    def stage(self, name: str) -> Stage:
        """The stage of that name; see :func:`named`."""
        return named(self.stages, name, self.plan.source)

    def standings(self, first: int | None = None) -> tuple[Standing, ...]:
        """How every stage stands, in order; with ``first``, only so many.

        Raises:
            EvidenceError: a verdict that cannot be read, or is another run's.
        """
        found: list[Standing] = []
        for stage in self.stages[:first]:
            found.append(self.standing(stage, found))
        return tuple(found)

    def standing(self, stage: Stage, earlier: Sequence[Standing]) -> Standing:
        """How one stage stands, given all those before it."""
        entry = self.run.read_with_digest(stage.id)
        verdict, digest = entry if entry else (None, None)
        expected = self.expected(stage, earlier)
        state = freshness(verdict, expected, self.run.unchanged)
        return Standing(
            stage,
            verdict,
            digest,
            expected,
            state,
            verdict is not None and state.fresh and opens(self.plan, verdict),
        )

    def expected(self, stage: Stage, earlier: Sequence[Standing]) -> Inputs:
        """What the stage's answer would depend on if it ran now."""
        return inputs(
            stage.reads(self.plan),
            self.code,
            self.environment,
            {s.stage.id: s.digest for s in earlier if s.digest is not None},
            stage.external(self.plan),
        )


def named(stages: Sequence[Stage], name: str, source: str) -> Stage:
    """The stage of that name in a plan.

    Raises:
        UsageError: the plan has no such stage; says which it has.
    """
    known = {stage.id: stage for stage in stages}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"It has: {', '.join(known)}."
    raise UsageError(f"the plan has no stage {name!r}", where=source, todo=hint)


def first_closed(standings: Sequence[Standing]) -> Standing | None:
    """The first stage that does not open the gate; it decides everything."""
    return next((standing for standing in standings if not standing.opens), None)


def exit_status(standings: Sequence[Standing]) -> int:
    """Exit status of a run that stands so: the first stage that did not open the gate decides."""
    closed = first_closed(standings)
    if closed is None:
        return PASSED if standings else STALE
    return stage_status(closed)


def stage_status(standing: Standing) -> int:
    """Exit status of one stage alone."""
    verdict = standing.verdict
    if verdict is None or standing.freshness.state is not State.FRESH:
        return STALE
    if standing.opens:
        return PASSED
    if verdict.outcome in (Outcome.ERROR, Outcome.BLOCKED):
        return ERROR
    absent = verdict.problem is not None and verdict.problem.cause == DEVICE_ABSENT
    return ABSENT if absent else FAILED


def require_open(earlier: Sequence[Standing], stage: str) -> None:
    """Refuse to run a stage before which the gate is closed.

    Raises:
        EvidenceError: names the first stage that has no fresh verdict that opens the gate.
    """
    closed = first_closed(earlier)
    if closed is None:
        return
    outcome = closed.verdict.outcome if closed.verdict else "no verdict"
    raise EvidenceError(
        f"{stage} stands behind {closed.stage.id}, which does not open the gate "
        f"({outcome}, {closed.freshness}); nothing was run",
        todo=f"Run everything, or first: pipeline.py run --only {closed.stage.id}",
    )
