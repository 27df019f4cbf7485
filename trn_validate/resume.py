"""Save, verify, resume: whether a checkpoint holds all that training needs."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.errors import EvidenceError
from trn_validate.judging import common_checks, common_names, global_steps
from trn_validate.ladder import ResolvedRung
from trn_validate.launching import DUMP, Trial, launch, run_spec, try_launch
from trn_validate.parity import parity_checks, parity_names
from trn_validate.paths import make_folder, write_atomic
from trn_validate.records import CheckpointChoice, RunSpec
from trn_validate.reference import state_check
from trn_validate.stage import Context

SAVE = "save"
RESUME = "resume"
RELOAD = "reload"
DAMAGE = ("truncated", "missing")
STATE = f"{RESUME}: state at the start"
FINAL = f"{RESUME}: state after the last step"
RELOADED = f"{RELOAD}: model at the start"


def halfway(rung: ResolvedRung) -> int:
    """Step after which the checkpoint is saved."""
    return rung.ladder.workload.steps // 2


def save_spec(plan: Plan, rung: ResolvedRung, private: Path, seed: Path) -> RunSpec:
    """The uninterrupted run that saves halfway."""
    middle = halfway(rung)
    return run_spec(
        plan,
        rung,
        SAVE,
        private,
        checkpoint=CheckpointChoice(load_path=str(seed.absolute()), save_interval=middle),
        digest_steps=(middle, rung.ladder.workload.steps),
    )


def resume_spec(plan: Plan, rung: ResolvedRung, name: str, private: Path) -> RunSpec:
    """A run that continues from the checkpoint in its own dump folder, then exports."""
    return run_spec(
        plan,
        rung,
        name,
        private,
        checkpoint=CheckpointChoice(resume=True, export_safetensors=name == RESUME),
        digest_steps=(0, rung.ladder.workload.steps),
    )


def reload_spec(plan: Plan, rung: ResolvedRung, private: Path) -> RunSpec:
    """A run that starts from the export."""
    steps = rung.ladder.workload.steps
    export = private / RESUME / DUMP / "checkpoint" / f"step-{steps}"
    return run_spec(
        plan,
        rung,
        RELOAD,
        private,
        checkpoint=CheckpointChoice(load_path=str(export.absolute()), load_safetensors=True),
        digest_steps=(0,),
        steps=max(2, rung.ladder.workload.warmup_steps),
    )


def give(source: Path, spec: RunSpec) -> Path:
    """Put a checkpoint where the run finds its own; linked, so that nothing is written twice."""
    target = Path(spec.dump) / "checkpoint" / source.name
    make_folder(target.parent)
    shutil.copytree(source, target, copy_function=os.link)
    return target


def damage(checkpoint: Path, how: str) -> str:
    """Cut the largest shard in half, or take it away; the original is left alone."""
    shard = max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
    data = shard.read_bytes()
    shard.unlink()
    if how == "truncated":
        write_atomic(shard, data[: len(data) // 2], sync=False)
    return shard.name


def resume_names() -> tuple[str, ...]:
    """Names of the checks that :func:`save_and_resume` makes."""
    return (
        *common_names(SAVE),
        f"{SAVE}: checkpoint files",
        f"{RESUME}: ranks that finished",
        STATE,
        *parity_names(RESUME),
        FINAL,
    )


def save_and_resume(
    context: Context, rung: ResolvedRung, seed: Path, parameters: int
) -> tuple[list[Check], Trial, Trial]:
    """Run through and save halfway, then resume from there; both end in the same state."""
    plan, private, steps = context.plan, context.attempt.private, rung.ladder.workload.steps
    (saved,) = launch(context, [save_spec(plan, rung, private, seed)])
    spec = resume_spec(plan, rung, RESUME, private)
    checkpoint = saved.checkpoints / f"step-{halfway(rung)}"
    files = _files_check(checkpoint, rung.degrees.world_size)
    checks = [*common_checks(plan, saved, parameters=parameters), files]
    if not files.passed:
        return checks, saved, saved
    give(checkpoint, spec)
    (resumed,) = launch(context, [spec])
    middle = halfway(rung)
    rest = [s for s in global_steps(saved.records) if s.step > middle]
    checks += [
        Check(
            name=f"{RESUME}: ranks that finished",
            measured=sum(r.complete for r in resumed.records.values()),
            comparator="==",
            limit=rung.degrees.world_size,
            source="derived",
        ),
        state_check(STATE, saved, resumed, middle, middle, at_start=True),
        *parity_checks(
            RESUME,
            rest,
            global_steps(resumed.records),
            steps=steps - middle,
            loss_absolute=plan.limits.rerun_loss_absolute,
            grad_norm_relative=plan.limits.grad_norm_relative
            if plan.limits.rerun_loss_absolute > 0
            else 0.0,
        ),
        state_check(FINAL, saved, resumed, steps, steps),
    ]
    return checks, saved, resumed


def _files_check(checkpoint: Path, world_size: int) -> Check:
    found = sorted(path.name for path in checkpoint.glob("*")) if checkpoint.is_dir() else []
    shards = [name for name in found if name.endswith(".distcp")]
    whole = ".metadata" in {path.name for path in checkpoint.glob(".*")} if found else False
    return Check(
        name=f"{SAVE}: checkpoint files",
        measured=len(shards) if whole else 0,
        comparator=">=",
        limit=1,
        unit="shards beside .metadata",
        source="derived",
        detail=f"{checkpoint.name}: {', '.join(found) or 'nothing'} of {world_size} ranks",
    )


def damage_names() -> tuple[str, ...]:
    """Names of the checks that :func:`damaged` makes."""
    return tuple(f"{how} shard: steps trained on it" for how in DAMAGE)


def damaged(context: Context, rung: ResolvedRung, saved: Trial) -> list[Check]:
    """A checkpoint with a truncated or a missing shard is noticed before a step is taken."""
    checkpoint = saved.checkpoints / f"step-{halfway(rung)}"
    specs, names = [], []
    for how in DAMAGE:
        spec = resume_spec(context.plan, rung, how, context.attempt.private)
        names.append(damage(give(checkpoint, spec), how))
        specs.append(spec)
    trials = try_launch(context, specs)
    return [
        Check(
            name=f"{how} shard: steps trained on it",
            # An exit status of 0 means that nothing complained, whatever was trained.
            measured=max(
                [len(r.steps) for r in trial.records.values()] + [int(trial.result.cause.usable)]
            ),
            comparator="==",
            limit=0,
            unit="steps",
            source="derived",
            detail=f"{name}: {trial.result.what or trial.result.cause.phrase}",
        )
        for how, name, trial in zip(DAMAGE, names, trials, strict=True)
    ]


def safetensors_elements(folder: Path) -> dict[str, int]:
    """Elements of each tensor in the safetensors files of a folder, by name.

    The format: 8 bytes little-endian header length, then JSON with dtype, shape and offsets
    (https://github.com/huggingface/safetensors, format). Read here so that no torch is needed.

    Raises:
        EvidenceError: a file that is not of that format, or a name that stands in two files.
    """
    found: dict[str, int] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, shape in _header(path).items():
            if name in found:
                raise EvidenceError(f"{name} stands in two files", where=str(path))
            count = 1
            for size in shape:
                count *= size
            found[name] = count
    return found


def _header(path: Path) -> Mapping[str, list[int]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        return {k: v["shape"] for k, v in header.items() if k != "__metadata__"}
    except (struct.error, ValueError, KeyError, TypeError, MemoryError) as error:
        raise EvidenceError(f"not a safetensors file ({error})", where=str(path)) from None
