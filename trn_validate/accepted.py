"""What earlier stages made and the gate let through: read back after hashing every file of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trn_validate.comparison import Yardstick, yardstick_of
from trn_validate.config import Plan
from trn_validate.control import measured_noise
from trn_validate.describing import thing_of
from trn_validate.errors import EvidenceError
from trn_validate.folded import Records
from trn_validate.folding import read_ranks
from trn_validate.judging import arrangement
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.reference import REFERENCE, SEED
from trn_validate.stage import Context
from trn_validate.tensors import kept
from trn_validate.verdict import Thing, Verdict


@dataclass(frozen=True)
class Reference:
    """What later stages compare with."""

    seed: Path
    thing: Thing
    yardstick: Yardstick
    step_seconds: tuple[float, ...] = ()
    """Wall seconds of each step on its slowest rank."""


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
    verdict, records = _load(context, stage, REFERENCE, SEED)
    folder = context.run.folder / f"{stage}/{verdict.attempt}"
    noise = measured_noise(verdict.measures)
    if noise is None:
        raise EvidenceError(
            "the reference has no control run", where=str(folder), todo=f"Rerun {stage}."
        )
    return Reference(
        seed=folder / SEED,
        thing=_thing(REFERENCE, verdict, records),
        yardstick=yardstick_of(records, kept(records, folder / REFERENCE / "captures"), noise),
        step_seconds=verdict.series.get("step_seconds", ()),
    )


def load_rung(context: Context, rung: ResolvedRung) -> Reference:
    """Read the run of a rung that its stage accepted, to hold another run of it against.

    Raises:
        EvidenceError: it is missing, or not what the verdict says.
    """
    first = load_reference(context, rung.ladder.name)
    if rung.extends is None:
        return first
    verdict, records = _load(context, rung.stage, rung.name)
    folder = context.run.folder / f"{rung.stage}/{verdict.attempt}"
    own = kept(records, folder / rung.name / "captures")
    # The rung's stage has shown that it started from the same bits, of which it kept digests.
    yardstick = yardstick_of(records, own, first.yardstick.noise)
    return Reference(
        seed=first.seed,
        thing=_thing(rung.name, verdict, records),
        yardstick=yardstick.starting_from(first.yardstick),
        step_seconds=verdict.series.get("step_seconds", ()),
    )


def load_launch(context: Context, stage: str, name: str, like: Reference) -> Reference:
    """Read one launch of an earlier stage, which ``like``'s seed and noise belong to.

    Raises:
        EvidenceError: it is missing, or not what the verdict says.
    """
    verdict, records = _load(context, stage, name)
    folder = context.run.folder / f"{stage}/{verdict.attempt}/{name}"
    yardstick = yardstick_of(records, kept(records, folder / "captures"), like.yardstick.noise)
    return Reference(
        seed=like.seed,
        thing=_thing(name, verdict, records),
        yardstick=yardstick.starting_from(like.yardstick),
    )


def _load(context: Context, stage: str, name: str, *others: str) -> tuple[Verdict, Records]:
    """A stage's verdict, and the records of one of its launches; every file is hashed first."""
    verdict = context.earlier.get(stage)
    if verdict is None:
        raise EvidenceError(f"{stage} has no verdict to compare with", where=context.run.name)
    attempt = f"{stage}/{verdict.attempt}"
    wanted = tuple(f"{attempt}/{part}/" for part in (name, *others))
    for artifact in verdict.artifacts:
        if artifact.path.startswith(wanted):
            context.run.verify(artifact)
    folder = context.run.folder / attempt / name
    records = read_ranks(folder / "records", verdict.layout.processes if verdict.layout else 1)
    if not records.ranks:
        raise EvidenceError(f"{name} has no records", where=str(folder), todo=f"Rerun {stage}.")
    return verdict, records


def _thing(name: str, verdict: Verdict, records: Records) -> Thing:
    attempt = f"{verdict.stage}/{verdict.attempt}"
    return thing_of(name, attempt, records, arrangement(records.headers[0]))
