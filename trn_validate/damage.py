"""Whether a damaged checkpoint is noticed before a step is trained on it."""

from __future__ import annotations

from pathlib import Path

from trn_validate.check import Check
from trn_validate.ladder import ResolvedRung
from trn_validate.launch import Cause
from trn_validate.launching import Trial, problem, try_launch
from trn_validate.paths import write_atomic
from trn_validate.resume import give, halfway, resume_spec
from trn_validate.spec import RunSpec
from trn_validate.stage import Context, Unmeasured

DAMAGE = ("truncated", "missing")


def damage(checkpoint: Path, how: str) -> str:
    """Cut the largest shard in half, or take it away; the original is left alone."""
    shard = max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
    data = shard.read_bytes()
    shard.unlink()
    if how == "truncated":
        write_atomic(shard, data[: len(data) // 2], sync=False)
    return shard.name


def damage_names() -> tuple[str, ...]:
    """Names of the checks that :func:`damaged` makes."""
    return tuple(f"{how} shard: steps trained on it" for how in DAMAGE)


def damaged(context: Context, rung: ResolvedRung, saved: Trial) -> list[Check]:
    """A checkpoint with a truncated or a missing shard is noticed before a step is taken.

    Raises:
        Unmeasured: a launch ended before it came to load, or for a reason that is not its own.
    """
    checkpoint = saved.checkpoints / f"step-{halfway(rung)}"
    specs, names = [], []
    for how in DAMAGE:
        spec = resume_spec(context.plan, rung, how, context.attempt.private)
        names.append(_break(context, checkpoint, spec, how))
        specs.append(spec)
    trials = try_launch(context, specs)
    for trial in trials:
        if not _taken(trial) and not _refused(trial):
            raise Unmeasured(problem(context, trial))
    return [
        Check(
            name=f"{how} shard: steps trained on it",
            measured=_taken(trial),
            comparator="==",
            limit=0,
            unit="steps",
            source="derived",
            detail=f"{name}: {trial.result.what or trial.result.cause.phrase}",
        )
        for how, name, trial in zip(DAMAGE, names, trials, strict=True)
    ]


def _break(context: Context, checkpoint: Path, spec: RunSpec, how: str) -> str:
    """Give a launch a copy of a checkpoint, and damage it; the name of the shard."""
    return context.observer.see(
        f"{how}: the shard", str, lambda: damage(give(checkpoint, spec), how)
    )


def _taken(trial: Trial) -> int:
    """Steps that were taken; an exit status of 0 counts as one, since nothing complained."""
    steps = [rank.taken for rank in trial.records.ranks.values()]
    return max([*steps, int(trial.result.cause.usable)])


def _refused(trial: Trial) -> bool:
    """Whether every rank had built its trainer and one then raised; a full disk tells nothing."""
    return (
        trial.result.cause in (Cause.CRASH, Cause.CONFIGURATION)
        and len(trial.records.ranks) == trial.spec.degrees.world_size
    )
