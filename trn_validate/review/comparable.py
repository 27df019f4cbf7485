"""What of two runs may be held against each other, and the reason where nothing may."""

from __future__ import annotations

from collections.abc import Iterator

from trn_validate.config import LadderSection, Plan
from trn_validate.review.figures import LaunchFigures
from trn_validate.review.material import Material

_RUNGS = "parallelism."


def identity(ladder: LadderSection) -> dict[str, str]:
    """What has to be equal for losses to mean the same: one of these apart, and nothing does."""
    work = ladder.workload
    data = work.data
    return {
        "model": _shape(ladder),
        "tokens per step": str(work.global_batch_size * work.seq_len),
        "sequence length": str(work.seq_len),
        "seed": str(work.seed),
        "data": f"{data.kind} {data.sha256}" if data.sha256 else data.kind,
        "learning rate": f"{work.learning_rate:g}, {work.warmup_steps} steps of warm-up",
    }


def _shape(ladder: LadderSection) -> str:
    """The model by its numbers, since a fork has the same one in a module of its own."""
    try:
        shape = ladder.model.resolved()
    except ValueError:
        return str(ladder.model)
    numbers = (f"{name} {value}" for name, value in shape.model_dump().items())
    return f"{ladder.model.flavor} ({', '.join(numbers)})"


def bearing(ladder: LadderSection) -> dict[str, str]:
    """What may differ, and explains distances: it is shown and forbids nothing."""
    work = ladder.workload
    return {
        "module": ladder.model.module,
        "steps": str(work.steps),
        "compute dtype": work.compute_dtype,
        "attention": work.attention,
        "activation checkpointing": work.activation_checkpointing,
        "spmd backend": work.spmd_backend,
        "sequence parallel": "yes" if work.sequence_parallel else "no",
    }


def ladder_of(plan: Plan, stage: str) -> LadderSection | None:
    """The ladder that a stage trains on; None where the plan has no such stage."""
    if stage.startswith("baseline."):
        return plan.ladders[0]
    if stage.startswith("kernels."):
        return plan.ladders[-1]
    rung = stage.removeprefix(_RUNGS)
    named = (ladder for ladder in plan.ladders if rung in {r.name for r in ladder.rungs})
    return next(named, None)


def obstacles(first: Material, other: Material, stage: str) -> tuple[str, ...]:
    """Why what two runs measured in one stage cannot be compared; empty where it can."""
    return tuple(_obstacles(first, other, stage))


def _obstacles(first: Material, other: Material, stage: str) -> Iterator[str]:
    theirs, ours = ladder_of(first.plan, stage), ladder_of(other.plan, stage)
    if theirs is None or ours is None:
        yield "one of the plans has no such stage"
        return
    before, now = identity(theirs), identity(ours)
    for name, value in now.items():
        if before[name] != value:
            yield f"{name}: {value}, not {before[name]}"
    if before == now:
        yield from _other_rows(launch_of(first, stage), launch_of(other, stage))


def _other_rows(first: LaunchFigures | None, other: LaunchFigures | None) -> Iterator[str]:
    """Equal plans may still have read other samples, which only the records tell."""
    if first is None or other is None:
        return
    rows = {step.step: step.rows for step in first.steps}
    for step in other.steps:
        if step.step in rows and rows[step.step] != step.rows:
            yield f"data: other rows entered forward at step {step.step}"
            return


def launch_of(material: Material, stage: str) -> LaunchFigures | None:
    """The launch whose numbers the verdict of a stage has, where there is only one such."""
    verdict = material.verdict(stage)
    name = "reference" if stage == "baseline.eager" else stage.removeprefix(_RUNGS)
    return material.launch(f"{stage}/{verdict.attempt}/{name}") if verdict else None
