"""From the records of all ranks to one row per step, and to the checks that any launch owes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.launching import Trial, finite_check
from trn_validate.ranks import RankRecord
from trn_validate.records import Header, Step
from trn_validate.spec import RunSpec

_MODULUS = 2**128


@dataclass(frozen=True)
class GlobalStep:
    """One optimizer step over all ranks."""

    step: int
    loss: float
    grad_norm: float
    tokens: int
    """Tokens consumed, counted once per data-parallel rank."""
    rows: str
    """Digest of all rows, whatever rank read them and in whatever order."""
    loss_spread: float
    """Largest difference between ranks that hold the loss."""
    norm_spread: float
    """Largest relative difference of the gradient norm, which every rank holds, from the first."""
    split: str
    """Names ranks that share samples and yet did not see the same rows; empty if none."""


def global_steps(records: Mapping[int, RankRecord]) -> tuple[GlobalStep, ...]:
    """Put the steps of all ranks together; only steps that every rank recorded."""
    by_step: dict[int, dict[int, Step]] = {}
    for rank, record in records.items():
        for line in record.steps:
            by_step.setdefault(line.step, {})[rank] = line
    whole = (s for s in sorted(by_step) if len(by_step[s]) == len(records))
    return tuple(_join(step, by_step[step], records) for step in whole)


def _join(step: int, lines: Mapping[int, Step], records: Mapping[int, RankRecord]) -> GlobalStep:
    losses = [line.loss for line in lines.values() if line.loss_here] or [float("nan")]
    norms = [line.grad_norm for line in lines.values()]
    readers: dict[int, list[int]] = {}
    for rank in lines:
        readers.setdefault(records[rank].header.dp_rank, []).append(rank)
    first = [lines[ranks[0]] for ranks in readers.values()]
    split = [
        f"ranks {ranks[0]} and {rank}"
        for ranks in readers.values()
        for rank in ranks[1:]
        if (lines[rank].rows, lines[rank].tokens) != (lines[ranks[0]].rows, lines[ranks[0]].tokens)
    ]
    return GlobalStep(
        step=step,
        loss=losses[0],
        grad_norm=norms[0],
        tokens=sum(line.tokens for line in first),
        rows=f"{sum(int(line.rows, 16) for line in first) % _MODULUS:032x}",
        loss_spread=max(losses) - min(losses),
        norm_spread=max(abs(norm - norms[0]) for norm in norms) / (abs(norms[0]) or 1.0),
        split=", ".join(split),
    )


def common_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`common_checks` makes."""
    what = (
        *("ranks that finished", "steps", "numbers that are not finite", "device"),
        *("communication backend", "degrees", "parameters", "tokens per step", "ranks agree"),
    )
    return tuple(f"{name}: {part}" for part in what)


def common_checks(plan: Plan, trial: Trial, *, parameters: int | None = None) -> list[Check]:
    """What every launch owes before its numbers mean anything.

    ``parameters`` is what the whole model has to have; None takes the trial's own, which only
    its ladder's reference may do.
    """
    records, spec = trial.records, trial.spec
    headers = [record.header for record in records.values()]
    profile = plan.profile
    here = whole_parameters(records)
    return [
        _count(trial, "ranks that finished", _finished(records), spec.degrees.world_size),
        _count(
            trial, "steps", min((len(r.steps) for r in records.values()), default=0), spec.steps
        ),
        finite_check(trial),
        _same(trial, "device", [h.parameter_device for h in headers], profile.device),
        _same(
            trial, "communication backend", [h.comm_backend for h in headers], profile.process_group
        ),
        _same(
            trial,
            "degrees",
            [arrangement(header) for header in headers],
            arrangement(spec),
        ),
        _count(trial, "parameters", here, here if parameters is None else parameters),
        _tokens(trial),
        _agreement(trial, plan),
    ]


def _finished(records: Mapping[int, RankRecord]) -> int:
    return sum(record.complete for record in records.values())


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
        measured, detail = values[odd], f"rank {list(trial.records)[odd]}"
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


def whole_parameters(records: Mapping[int, RankRecord]) -> int:
    """Elements of the whole model: those of each pipeline stage, counted once."""
    if not records:
        return 0
    degrees = next(iter(records.values())).header.degrees
    world = degrees.world_size
    # pp is the outermost axis of torchtitan's mesh, so each stage is one block of ranks.
    block = world // degrees.pp
    return sum(records[r].header.parameters for r in range(0, world, block) if r in records)


def _tokens(trial: Trial) -> Check:
    expected = trial.spec.tokens_per_step
    steps = global_steps(trial.records)
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
    steps = global_steps(trial.records)
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
