"""The reference of a ladder: its seed checkpoint, its record, and whether both can be trusted.

Made by the ladder's first stage and never again silently: later stages read it through
:mod:`trn_validate.accepted`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.control import CONTROL, trial_kept
from trn_validate.describing import thing
from trn_validate.folded import GlobalStep, repeated
from trn_validate.judging import common_checks, common_names
from trn_validate.ladder import ResolvedRung
from trn_validate.launching import Trial, launch, run_spec
from trn_validate.parity import Limit, parity_checks, parity_names
from trn_validate.spec import DTYPE, CheckpointChoice, Degrees, RunSpec
from trn_validate.stage import Context
from trn_validate.tensors import REPLICAS, replicas_check
from trn_validate.verdict import Compared

SEED = "seed"
REFERENCE = "reference"
RERUN = "rerun"


def seed_spec(plan: Plan, rung: ResolvedRung, private: Path) -> RunSpec:
    """One process that initialises the model and writes it before any step.

    Always on the host's CPU, so that the memory of one core does not bound the model.
    """
    single = ResolvedRung(rung.ladder, SEED, None, None, Degrees())
    spec = run_spec(plan, single, SEED, private, checkpoint=CheckpointChoice(create_seed=True))
    return spec.model_copy(update={"device": "cpu"})


def from_seed(seed: Path) -> CheckpointChoice:
    """Start from the weights of a seed checkpoint."""
    return CheckpointChoice(load_path=str(seed.absolute()))


def reference_spec(plan: Plan, rung: ResolvedRung, name: str, private: Path, seed: Path) -> RunSpec:
    """The reference or its rerun: from the seed, with the state's digests after the last step."""
    spec = run_spec(
        plan,
        rung,
        name,
        private,
        checkpoint=from_seed(seed),
        digest_steps=(rung.ladder.workload.steps,),
        captures=True,
    )
    mine = name == REFERENCE
    return spec.model_copy(update={"keep_start": mine, "count_communication": mine})


def control_spec(
    plan: Plan,
    rung: ResolvedRung,
    private: Path,
    seed: Path,
    *,
    name: str = CONTROL,
    signs: int = 1,
) -> RunSpec:
    """The reference from weights that differ in their last place, up or down by seed ``signs``."""
    spec = run_spec(plan, rung, name, private, checkpoint=from_seed(seed), captures=True)
    # What it was moved by is no noise, so its change is counted from where it started.
    return spec.model_copy(update={"perturb": signs, "keep_start": True})


def make_seed(context: Context, rung: ResolvedRung) -> Path:
    """Make the ladder's seed checkpoint and move it into the run folder."""
    (trial,) = launch(context, [seed_spec(context.plan, rung, context.attempt.private)])
    context.attempt.adopt(trial.checkpoints / "step-0", SEED)
    return context.attempt.folder / SEED


def reference_names() -> tuple[str, ...]:
    """Names of the checks that :func:`reference_checks` makes."""
    return (
        *common_names(REFERENCE),
        f"{REFERENCE}: {REPLICAS}",
        f"{REFERENCE}: first loss from ln(vocabulary)",
        f"{REFERENCE}: fall of the loss",
        f"{REFERENCE}: steps with rows of an earlier step",
    )


def reference_checks(plan: Plan, trial: Trial) -> list[Check]:
    """Whether a run from random weights looks like training at all."""
    steps = trial.records.steps
    losses = [s.loss for s in steps]
    first = losses[0] if losses else math.nan
    vocabulary = trial.records.headers[0].vocab_size
    near, fall, fresh = reference_names()[-3:]
    return [
        *common_checks(plan, trial),
        replicas_check(REFERENCE, trial_kept(trial)),
        Check(
            name=near,
            measured=abs(first - math.log(vocabulary)),
            comparator="<=",
            limit=plan.limits.first_loss_absolute,
            unit="nats",
            source="config",
            detail=f"first loss {first:.6f}, ln({vocabulary}) is {math.log(vocabulary):.6f}",
        ),
        Check(
            name=fall,
            measured=first - losses[-1] if losses else math.nan,
            comparator=">=",
            limit=plan.limits.loss_fall,
            unit="nats",
            source="config",
            detail=f"over {len(losses)} steps",
        ),
        _fresh(fresh, trial, steps),
    ]


def _fresh(name: str, trial: Trial, steps: Sequence[GlobalStep]) -> Check:
    """A loader that is stuck gives every layout the same rows, so no comparison sees it."""
    who, again = "the global batch", repeated((s.step, s.rows) for s in steps)
    # A single rank that is stuck leaves the global batch a new one at every step.
    rank, own = trial.records.again
    if len(own) > len(again):
        who, again = f"rank {rank}", own
    detail = f"{len(steps)} steps, each with rows of its own"
    if again:
        detail = f"{who}, first at step {again[0]}"
    return Check(
        name=name,
        measured=len(again) if steps else 1,
        comparator="==",
        limit=0,
        source="derived",
        detail=detail,
    )


def rerun_names(plan: Plan) -> tuple[str, ...]:
    """Names of the checks that :func:`rerun_checks` makes."""
    state = (f"{RERUN}: state after the last step",) if plan.profile.device == "cpu" else ()
    return (*common_names(RERUN), f"{RERUN}: {REPLICAS}", *parity_names(RERUN), *state)


def rerun_checks(plan: Plan, reference: Trial, rerun: Trial) -> list[Check]:
    """Whether the same thing run again is the same: bit by bit where the device can do that."""
    checks = [
        *common_checks(plan, rerun, parameters=reference.records.parameters),
        replicas_check(RERUN, trial_kept(rerun)),
        *parity_checks(
            RERUN,
            reference.records.steps,
            rerun.records.steps,
            steps=reference.spec.steps,
            **rerun_limits(plan, reference.spec.compute_dtype),
        ),
    ]
    if plan.profile.device == "cpu":
        last = reference.spec.steps
        checks.append(
            state_check(f"{RERUN}: state after the last step", reference, rerun, last, last)
        )
    return checks


class RerunLimits(TypedDict):
    """Limits of :func:`trn_validate.parity.parity_checks` between two runs of the same thing."""

    loss: Limit
    grad_norm: Limit


def rerun_limits(plan: Plan, dtype: DTYPE) -> RerunLimits:
    """Limits on a repetition; its gradient norm is exact where its loss has to be."""
    loss = plan.limits.rerun_loss_absolute
    norm = plan.limits.of(dtype).grad_norm_relative.floor if loss > 0 else 0.0
    return {"loss": Limit(loss), "grad_norm": Limit(norm)}


def state_check(
    name: str,
    expected: Trial,
    found: Trial,
    expected_step: int,
    found_step: int,
    *,
    parts: tuple[str, ...] = ("model", "optimizer", "scheduler", "data", "rng"),
    at_start: bool = False,
) -> Check:
    """Digests of the parts of the state are equal on every rank; names those that are not."""
    differing: list[str] = []
    for rank, record in expected.records.ranks.items():
        ours = record.state("end", expected_step)
        other = found.records.ranks.get(rank)
        theirs = other.state("start" if at_start else "end", found_step) if other else None
        if ours is None or theirs is None:
            differing.append(f"no state of rank {rank}")
            continue
        differing += [
            f"{part} of rank {rank}"
            for part in parts
            if part not in ours.digests or ours.digests[part] != theirs.digests.get(part)
        ]
    return Check(
        name=name,
        measured=len(differing) if expected.records.ranks else len(parts),
        comparator="==",
        limit=0,
        unit="parts that differ",
        source="derived",
        detail=", ".join(differing) or ", ".join(parts),
    )


def compared_with(context: Context, reference: Trial, rerun: Trial) -> Compared:
    """A run and its repetition."""
    return Compared(
        reference=thing(reference, context.attempt.relative),
        candidate=thing(rerun, context.attempt.relative),
        differ="processes",
    )
