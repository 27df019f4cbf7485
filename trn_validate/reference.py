"""The reference of a ladder: its seed checkpoint, its record, and whether both can be trusted.

Made by the ladder's first stage and never again silently: later stages read the files that its
verdict names, and hash them first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.errors import EvidenceError
from trn_validate.judging import (
    GlobalStep,
    common_checks,
    common_names,
    global_steps,
    thing,
    whole_parameters,
)
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.launching import Trial, launch, run_spec
from trn_validate.parity import parity_checks, parity_names
from trn_validate.ranks import read_ranks
from trn_validate.records import CheckpointChoice, Degrees, RunSpec
from trn_validate.stage import Context
from trn_validate.verdict import Compared, Thing, Verdict

SEED = "seed"
REFERENCE = "reference"
RERUN = "rerun"
STEP_0 = "checkpoint/step-0"


@dataclass(frozen=True)
class Reference:
    """What later stages compare with."""

    seed: Path
    steps: tuple[GlobalStep, ...]
    parameters: int
    thing: Thing


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
    return run_spec(
        plan,
        rung,
        name,
        private,
        checkpoint=from_seed(seed),
        digest_steps=(rung.ladder.workload.steps,),
    )


def make_seed(context: Context, rung: ResolvedRung) -> Path:
    """Make the ladder's seed checkpoint and move it into the run folder."""
    (trial,) = launch(context, [seed_spec(context.plan, rung, context.attempt.private)])
    context.run.adopt(trial.checkpoints / "step-0", SEED, context.attempt)
    return context.attempt.folder / SEED


def reference_names() -> tuple[str, ...]:
    """Names of the checks that :func:`reference_checks` makes."""
    return (
        *common_names(REFERENCE),
        f"{REFERENCE}: first loss from ln(vocabulary)",
        f"{REFERENCE}: fall of the loss",
    )


def reference_checks(plan: Plan, trial: Trial) -> list[Check]:
    """Whether a run from random weights looks like training at all."""
    losses = [s.loss for s in global_steps(trial.records)]
    first = losses[0] if losses else math.nan
    vocabulary = next(iter(trial.records.values())).header.vocab_size
    _, (near, fall) = reference_names()[:-2], reference_names()[-2:]
    return [
        *common_checks(plan, trial),
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
    ]


def rerun_names(plan: Plan) -> tuple[str, ...]:
    """Names of the checks that :func:`rerun_checks` makes."""
    state = (f"{RERUN}: state after the last step",) if plan.profile.device == "cpu" else ()
    return (*common_names(RERUN), *parity_names(RERUN), *state)


def rerun_checks(plan: Plan, reference: Trial, rerun: Trial) -> list[Check]:
    """Whether the same thing run again is the same: bit by bit where the device can do that."""
    checks = [
        *common_checks(plan, rerun, parameters=whole_parameters(reference.records)),
        *parity_checks(
            RERUN,
            global_steps(reference.records),
            global_steps(rerun.records),
            steps=reference.spec.steps,
            loss_absolute=plan.limits.rerun_loss_absolute,
            grad_norm_relative=rerun_norm(plan),
        ),
    ]
    if plan.profile.device == "cpu":
        last = reference.spec.steps
        checks.append(
            state_check(f"{RERUN}: state after the last step", reference, rerun, last, last)
        )
    return checks


def rerun_norm(plan: Plan) -> float:
    """Limit on a repetition's gradient norm: exact where its loss has to be exact."""
    return plan.limits.grad_norm_relative if plan.limits.rerun_loss_absolute > 0 else 0.0


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
    for rank, record in expected.records.items():
        ours = record.state("end", expected_step)
        other = found.records.get(rank)
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
        measured=len(differing) if expected.records else len(parts),
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


def stage_of_reference(plan: Plan, ladder_name: str) -> str:
    """Stage that makes the seed and the reference of a ladder."""
    if plan.ladders[0].name == ladder_name:
        return "baseline.eager"
    ladder = next(ladder for ladder in plan.ladders if ladder.name == ladder_name)
    return resolve(ladder)[0].stage


def load_reference(context: Context, ladder_name: str) -> Reference:
    """Read the reference that an earlier stage made, after hashing every file of it.

    Raises:
        EvidenceError: it is missing, or not what the verdict says.
    """
    stage = stage_of_reference(context.plan, ladder_name)
    verdict = context.earlier.get(stage)
    if verdict is None:
        raise EvidenceError(f"{stage} has no verdict to compare with", where=context.run.name)
    folder = context.run.folder / f"{stage}/{verdict.attempt}"
    for artifact in verdict.artifacts:
        if artifact.path.startswith((f"{stage}/{verdict.attempt}/{SEED}/", _records(verdict))):
            context.run.verify(artifact)
    records = read_ranks(folder / REFERENCE / "records", _world(verdict))
    if not records:
        raise EvidenceError(
            "the reference has no records", where=str(folder), todo=f"Rerun {stage}."
        )
    return Reference(
        seed=folder / SEED,
        steps=global_steps(records),
        parameters=whole_parameters(records),
        thing=Thing(
            name=REFERENCE,
            attempt=f"{stage}/{verdict.attempt}",
            pids=tuple(record.header.pid for record in records.values()),
            layout=f"{records[0].header.degrees}, accumulation {records[0].header.accumulation}",
        ),
    )


def _records(verdict: Verdict) -> str:
    return f"{verdict.stage}/{verdict.attempt}/{REFERENCE}/"


def _world(verdict: Verdict) -> int:
    return verdict.layout.processes if verdict.layout else 1
