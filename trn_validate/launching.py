"""From a rung to a run spec to a launch, and what its ranks left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from trn_validate import launch_neuron
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.distances import Measuring, Meter
from trn_validate.errors import EvidenceError, MeasurementError
from trn_validate.folded import Records
from trn_validate.folding import read_ranks
from trn_validate.ladder import ResolvedRung
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.paths import make_folder, write_atomic
from trn_validate.spec import CheckpointChoice, RunSpec, captures_folder, checkpoints_folder
from trn_validate.stage import Context, Unmeasured
from trn_validate.torchrun import rank_environment, torchrun
from trn_validate.verdict import Problem

DUMP = "dump"
"""torchtitan's folder inside a launch's; checkpoints are in it, and it is never published."""


@dataclass(frozen=True)
class Trial:
    """One finished launch of the workload, with what its ranks recorded."""

    spec: RunSpec
    result: LaunchResult
    records: Records
    moved: Path | None = None
    """Where in the run folder its tensors were moved to."""
    meter: Meter = field(default_factory=Measuring, compare=False)
    """How its tensors are held against a reference's."""

    @property
    def captures(self) -> Path:
        """Folder of the tensors that its ranks kept."""
        return self.moved or captures_folder(self.spec)

    @property
    def checkpoints(self) -> Path:
        """Where torchtitan put its checkpoints, one folder ``step-<n>`` each."""
        return checkpoints_folder(self.spec)


def run_spec(
    plan: Plan,
    rung: ResolvedRung,
    name: str,
    private: Path,
    *,
    checkpoint: CheckpointChoice | None = None,
    digest_steps: tuple[int, ...] = (),
    steps: int | None = None,
    local_batch_size: int | None = None,
    captures: bool = False,
) -> RunSpec:
    """The run spec of one launch of ``rung`` whose files go to ``private/name``.

    With ``captures`` it keeps gradients and parameters as the plan says.
    """
    workload = rung.ladder.workload
    return RunSpec(
        **_place(private, name),
        device=plan.profile.device,
        model=rung.ladder.model.choice,
        data=workload.data,
        degrees=rung.degrees,
        nodes=rung.nodes_in(plan),
        seq_len=workload.seq_len,
        global_batch_size=workload.global_batch_size,
        local_batch_size=local_batch_size or rung.local_batch_size,
        steps=steps or workload.steps,
        seed=workload.seed,
        compute_dtype=workload.compute_dtype,
        attention=workload.attention,
        activation_checkpointing=workload.activation_checkpointing,
        spmd_backend=workload.spmd_backend,
        sequence_parallel=workload.sequence_parallel,
        learning_rate=workload.learning_rate,
        warmup_steps=workload.warmup_steps,
        init_timeout_seconds=plan.timeouts.init,
        train_timeout_seconds=plan.timeouts.train,
        checkpoint=checkpoint or CheckpointChoice(),
        digest_steps=digest_steps,
        capture=workload.captures if captures else "none",
    )


def renamed(spec: RunSpec, name: str, private: Path) -> RunSpec:
    """The same launch under another name, its files in ``private/name``."""
    return spec.model_copy(update=dict(_place(private, name)))


class _Place(TypedDict):
    name: str
    records: str
    dump: str
    stacks: str


def _place(private: Path, name: str) -> _Place:
    folder = private / name
    return {
        "name": name,
        "records": str(folder / "records"),
        "dump": str(folder / DUMP),
        "stacks": str(folder / "stacks"),
    }


def request(plan: Plan, spec: RunSpec) -> LaunchRequest:
    """The launch that carries out ``spec`` by torchrun, its rendezvous on a free port."""
    folder = Path(spec.records).parent
    ranks = spec.degrees.world_size
    spec_file = str(folder / "spec.json")
    argv = torchrun(ranks, folder, "trn_validate.workload", "--spec", spec_file, nodes=spec.nodes)
    return LaunchRequest(
        name=spec.name,
        argv=argv,
        folder=folder,
        ranks=ranks,
        nodes=spec.nodes,
        records=Path(spec.records),
        env=rank_environment(spec.device, ranks // spec.nodes),
        wall_seconds=plan.timeouts.wall,
        silence_seconds=plan.timeouts.silence,
        grace_seconds=plan.timeouts.grace,
    )


def launch(context: Context, specs: Iterable[RunSpec]) -> tuple[Trial, ...]:
    """Carry out several launches at once; the records of each may be judged.

    Raises:
        Unmeasured: one of them ended badly; where its records hold a number that is not
            finite, that is the finding.
    """
    trials = try_launch(context, specs)
    for trial in trials:
        if not trial.result.cause.usable:
            raise Unmeasured(problem(context, trial), _not_finite(trial))
    return trials


def try_launch(context: Context, specs: Iterable[RunSpec]) -> tuple[Trial, ...]:
    """Carry out several launches at once, however they end."""
    chosen = tuple(specs)
    for spec in chosen:
        _warm_up(context, spec)
    requests = tuple(_ready(context, spec) for spec in chosen)
    context.say(f"launching {', '.join(f'{s.name} ({s.degrees})' for s in chosen)}")
    results = context.launcher.together(requests)
    context.note(*results)
    trials = tuple(
        Trial(spec, result, _records(spec, result), _moved(context, spec), context.meter)
        for spec, result in zip(chosen, results, strict=True)
    )
    for header in (header for trial in trials for header in trial.records.headers):
        context.hooks.update(header.hooks)
        context.pids.add(header.pid)
    return trials


def _ready(context: Context, spec: RunSpec) -> LaunchRequest:
    """Write what the ranks are told, and give the launch with all that it needs."""
    folder = Path(spec.records).parent
    make_folder(folder)
    write_atomic(folder / "spec.json", (spec.model_dump_json(indent=2) + "\n").encode())
    # The compilers of one node share its memory.
    private, ranks = context.run.private, spec.degrees.world_size // spec.nodes
    return launch_neuron.equipped(spec.device, private, ranks, request(context.plan, spec))


def _warm_up(context: Context, spec: RunSpec) -> None:
    """Let few ranks fill the cache before many compile at once; how that ends is no finding."""
    warm = launch_neuron.warm_spec(spec)
    if warm is None:
        return
    known, private = f"the cache is warm for {spec.name}", context.run.private
    if context.observer.see(known, bool, lambda: launch_neuron.is_warm(private, warm)):
        return
    context.say(f"compiling on {warm.degrees.world_size} ranks for {spec.degrees.world_size}")
    result = context.launcher.launch(_ready(context, warm))
    context.note(result)
    if result.cause.usable:
        launch_neuron.set_warm(context.run.private, warm)


def _moved(context: Context, spec: RunSpec) -> Path | None:
    """Move what the ranks kept into the run folder, since it is no text and stays as it is."""
    folder = captures_folder(spec)
    if not folder.is_dir():
        return None
    return context.run.folder / context.attempt.adopt(folder, f"{spec.name}/{folder.name}")


def _records(spec: RunSpec, result: LaunchResult) -> Records:
    """What the ranks of a launch of this stage wrote; nothing where it failed and cannot be read.

    Raises:
        MeasurementError: a line is no record; it is the launch that failed, not the evidence.
    """
    try:
        return read_ranks(Path(spec.records), spec.degrees.world_size)
    except EvidenceError as error:
        if not result.cause.usable:
            return Records()
        raise MeasurementError(f"{spec.name} wrote {error.what}", where=error.where) from error


def _not_finite(trial: Trial) -> tuple[Check, ...]:
    return () if trial.records.not_finite is None else (finite_check(trial),)


def finite_check(trial: Trial) -> Check:
    """Every loss and gradient norm of the trial is a finite number."""
    found = trial.records.not_finite
    return Check(
        name=f"{trial.spec.name}: numbers that are not finite",
        measured=0 if found is None else 1,
        comparator="==",
        limit=0,
        source="derived",
        detail="" if found is None else f"{found[2]} of rank {found[1]} at step {found[0]}",
    )


def problem(context: Context, trial: Trial) -> Problem:
    """Where to look after a launch that went wrong."""
    found = trial.records.not_finite
    return Problem(
        cause=trial.result.cause.value,
        what=f"{trial.spec.name}: {trial.result.what or trial.result.cause.phrase}",
        rank=trial.result.rank,
        step=found[0] if found else trial.records.last_step,
        log=log_path(context, trial.result),
        excerpt=trial.result.excerpt,
    )


def log_path(context: Context, result: LaunchResult) -> str:
    """Where the published copy of a launch's log is, relative to the run folder."""
    if result.log is None or not result.log.is_relative_to(context.attempt.private):
        return ""
    return f"{context.attempt.relative}/{result.log.relative_to(context.attempt.private)}"
