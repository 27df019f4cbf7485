"""The checks that any launch owes before its numbers mean anything."""

from __future__ import annotations

from collections.abc import Sequence

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.launching import Trial, finite_check
from trn_validate.records import Header
from trn_validate.spec import RunSpec


def place_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`place_checks` makes."""
    what = ("ranks that finished", "device", "communication backend", "degrees")
    return tuple(f"{name}: {part}" for part in what)


def common_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`common_checks` makes."""
    what = (
        *("steps", "numbers that are not finite"),
        *("parameters", "tokens per step", "ranks agree"),
    )
    return (*place_names(name), *(f"{name}: {part}" for part in what))


def place_checks(plan: Plan, trial: Trial) -> list[Check]:
    """Whether every rank ran, and on what and in which layout it did."""
    spec, headers, profile = trial.spec, trial.records.headers, plan.profile
    return [
        _count(trial, "ranks that finished", finished(trial), spec.degrees.world_size),
        _same(trial, "device", [h.parameter_device for h in headers], profile.device),
        _same(
            trial, "communication backend", [h.comm_backend for h in headers], profile.process_group
        ),
        _same(trial, "degrees", [arrangement(header) for header in headers], arrangement(spec)),
    ]


def common_checks(plan: Plan, trial: Trial, *, parameters: int | None = None) -> list[Check]:
    """What every launch owes before its numbers mean anything.

    ``parameters`` is what the whole model has to have; None takes the trial's own, which only
    its ladder's reference may do.
    """
    records = trial.records
    here = records.parameters
    taken = min((rank.taken for rank in records.ranks.values()), default=0)
    return [
        *place_checks(plan, trial),
        _count(trial, "steps", taken, trial.spec.steps),
        finite_check(trial),
        _count(trial, "parameters", here, here if parameters is None else parameters),
        _tokens(trial),
        _agreement(trial, plan),
    ]


def finished(trial: Trial) -> int:
    """Ranks that came to their last line."""
    return sum(rank.complete for rank in trial.records.ranks.values())


def _count(trial: Trial, what: str, measured: int, limit: int) -> Check:
    return Check(
        name=f"{trial.spec.name}: {what}",
        measured=measured,
        comparator="==",
        # No launch is right with nothing of it: 0 against 0 is the vacuous pass.
        limit=max(limit, 1),
        source="derived",
    )


def _same(trial: Trial, what: str, values: Sequence[str], expected: str) -> Check:
    """Every rank says ``expected``; the first that does not is named."""
    odd = next((place for place, value in enumerate(values) if value != expected), None)
    if odd is not None:
        measured, detail = values[odd], f"rank {list(trial.records.ranks)[odd]}"
    else:
        measured, detail = (expected, f"{len(values)} ranks") if values else ("none", "no rank")
    return Check(
        name=f"{trial.spec.name}: {what}",
        measured=measured,
        comparator="==",
        limit=expected,
        source="config",
        detail=detail,
    )


def _tokens(trial: Trial) -> Check:
    expected = trial.spec.tokens_per_step
    steps = trial.records.steps
    odd = next((s for s in steps if s.tokens != expected), None)
    return Check(
        name=f"{trial.spec.name}: tokens per step",
        measured=odd.tokens if odd else (expected if steps else 0),
        comparator="==",
        limit=expected,
        unit="tokens",
        source="derived",
        detail=f"step {odd.step}" if odd else f"all {len(steps)} steps",
    )


def _agreement(trial: Trial, plan: Plan) -> Check:
    steps = trial.records.steps
    floors = plan.limits.of(trial.spec.compute_dtype)
    split = next((s for s in steps if s.split), None)
    norm = next((s for s in steps if not s.norm_spread <= floors.grad_norm_relative.floor), None)
    worst = max(steps, key=lambda s: s.loss_spread, default=None)
    detail = f"step {worst.step}" if worst else "no step"
    if norm is not None:
        detail = f"grad norms differ by {norm.norm_spread:.1e} at step {norm.step}"
    if split is not None:
        detail = f"{split.split} share samples but saw other rows at step {split.step}"
    return Check(
        name=f"{trial.spec.name}: ranks agree",
        # Neither is a distance in nats: it counts as one that no limit allows.
        measured=float("inf") if split or norm or worst is None else worst.loss_spread,
        comparator="<=",
        limit=floors.loss_absolute.floor,
        unit="nats",
        source="config",
        detail=detail,
    )


def arrangement(of: RunSpec | Header) -> str:
    """A layout in words, as it was asked for or as torchtitan built it."""
    return f"{of.degrees}, accumulation {of.accumulation}"
