"""Save, verify, resume: whether a checkpoint holds all that training needs."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from trn_validate.base import Record
from trn_validate.check import Check
from trn_validate.comparison import Yardstick
from trn_validate.config import Plan
from trn_validate.errors import MeasurementError
from trn_validate.folded import GlobalStep
from trn_validate.judging import common_checks, common_names, place_checks, place_names
from trn_validate.ladder import ResolvedRung
from trn_validate.launching import DUMP, Trial, launch, run_spec
from trn_validate.parity import parity_checks, parity_names
from trn_validate.paths import file_digest, files_below, make_folder, write_atomic
from trn_validate.reference import rerun_limits, state_check
from trn_validate.spec import DTYPE, CheckpointChoice, RunSpec
from trn_validate.stage import Context

SAVE = "save"
RESUME = "resume"
RELOAD = "reload"
STATE = f"{RESUME}: state at the start"
_MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each weight."""
_PARTS = ("lr_scheduler", "dataloader", "train_state")
"""Entries of torchtitan's checkpoints that are not of the model or the optimizer."""
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


def resume_names() -> tuple[str, ...]:
    """Names of the checks that :func:`save_and_resume` makes."""
    return (
        *common_names(SAVE),
        *parity_names(SAVE),
        f"{SAVE}: checkpoint files",
        f"{SAVE}: entries of the checkpoint",
        *place_names(RESUME),
        STATE,
        *parity_names(RESUME),
        FINAL,
    )


def save_and_resume(
    context: Context,
    rung: ResolvedRung,
    seed: Path,
    ours: Yardstick,
) -> tuple[list[Check], Trial, Trial | None]:
    """Run through and save halfway, then resume from there; both end in the same state.

    Gives no resumed run where there was nothing to resume from.
    """
    plan, private, steps = context.plan, context.attempt.private, rung.ladder.workload.steps
    dtype = rung.ladder.workload.compute_dtype
    (saved,) = launch(context, [save_spec(plan, rung, private, seed)])
    checkpoint = saved.checkpoints / f"step-{halfway(rung)}"
    checks = [
        *common_checks(plan, saved, parameters=ours.parameters),
        *_same(plan, dtype, SAVE, ours.steps, saved.records.steps, steps),
        _files_check(checkpoint.name, _files(context, checkpoint), rung.degrees.world_size),
        _entries_check(saved, halfway(rung), ours),
    ]
    # What lacks a part cannot be loaded: that would hide the check behind a crash.
    if not all(check.passed for check in checks[-2:]):
        return checks, saved, None
    listing = context.observer.see(
        f"{SAVE}: digests of the checkpoint", dict[str, FileSeen], lambda: _listing(checkpoint)
    )
    write_atomic(private / SAVE / "checkpoint-files.json", _as_json(checkpoint.name, listing))
    spec = resume_spec(plan, rung, RESUME, private)
    context.observer.see(f"{RESUME}: given", str, lambda: give(checkpoint, spec).name)
    (resumed,) = launch(context, [spec])
    return [*checks, *_resume_checks(plan, rung, saved, resumed)], saved, resumed


def _resume_checks(plan: Plan, rung: ResolvedRung, saved: Trial, resumed: Trial) -> list[Check]:
    middle, steps = halfway(rung), rung.ladder.workload.steps
    dtype = rung.ladder.workload.compute_dtype
    rest = [s for s in saved.records.steps if s.step > middle]
    return [
        *place_checks(plan, resumed),
        state_check(STATE, saved, resumed, middle, middle, at_start=True),
        *_same(plan, dtype, RESUME, rest, resumed.records.steps, steps - middle),
        state_check(FINAL, saved, resumed, steps, steps),
    ]


def _same(
    plan: Plan,
    dtype: DTYPE,
    name: str,
    reference: Sequence[GlobalStep],
    candidate: Sequence[GlobalStep],
    steps: int,
) -> list[Check]:
    """A repetition, held against the limits of one."""
    return parity_checks(
        name,
        reference,
        candidate,
        steps=steps,
        **rerun_limits(plan, dtype),
    )


def _files(context: Context, checkpoint: Path) -> list[str]:
    """Names of all files of a checkpoint, in order."""

    def look() -> list[str]:
        return sorted(path.name for path in checkpoint.iterdir()) if checkpoint.is_dir() else []

    return context.observer.see(f"{SAVE}: files of the checkpoint", list[str], look)


def _files_check(name: str, names: Sequence[str], world_size: int) -> Check:
    found = [one for one in names if not one.startswith(".")]
    shards = [one for one in found if one.endswith(".distcp")]
    whole = ".metadata" in names
    return Check(
        name=f"{SAVE}: checkpoint files",
        measured=len(shards) if whole else 0,
        comparator=">=",
        limit=1,
        unit="shards beside .metadata",
        source="derived",
        detail=f"{name}: {', '.join(found) or 'nothing'} of {world_size} ranks",
    )


def _entries_check(saved: Trial, step: int, ours: Yardstick) -> Check:
    """The index has every weight, both moments of each that is trained, and the other parts."""
    told = (line for rank in saved.records.ranks.values() for line in rank.saved)
    entries = next((line.elements for line in told if line.step == step), {})
    trained = ours.kept.gradient.names if ours.kept.gradient is not None else ()
    moments = [f"optimizer.state.{name}.{moment}" for name in trained for moment in _MOMENTS]
    missing = [name for name in moments if not entries.get(name)]
    missing += [part for part in _PARTS if not any(entry.startswith(part) for entry in entries)]
    # By their elements: torchtitan saves a fused projection under the names of its parts.
    rest = ("optimizer.", *_PARTS)
    weights = sum(count for name, count in entries.items() if not name.startswith(rest))
    if weights != ours.parameters:
        missing.append(f"weights, with {weights} of {ours.parameters} elements")
    return Check(
        name=f"{SAVE}: entries of the checkpoint",
        measured=len(missing) if trained else max(1, len(missing)),
        comparator="==",
        limit=0,
        unit="missing",
        source="derived",
        detail=f"first {missing[0]}" if missing else f"{len(entries)} entries",
    )


class FileSeen(Record):
    """A file that is too large to be kept."""

    bytes: int
    sha256: str


def _listing(checkpoint: Path) -> dict[str, FileSeen]:
    """Size and sha256 of each file of a checkpoint."""
    return {
        path.name: FileSeen(bytes=path.stat().st_size, sha256=file_digest(path))
        for path in files_below(checkpoint)
    }


def _as_json(name: str, listing: dict[str, FileSeen]) -> bytes:
    files = {file: seen.model_dump() for file, seen in listing.items()}
    return (json.dumps({name: files}, indent=2) + "\n").encode()


def safetensors_elements(folder: Path) -> dict[str, int]:
    """Elements of each tensor in the safetensors files of a folder, by name; none is loaded.

    Raises:
        MeasurementError: a file that is not of that format, or a name that stands in two files.
    """
    # Imported here, since status has 0.3 s and needs no tensor.
    from safetensors import SafetensorError, safe_open

    found: dict[str, int] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in list(file.keys())}
        except (SafetensorError, OSError) as error:
            raise MeasurementError(f"not a safetensors file ({error})", where=str(path)) from None
        for name, shape in shapes.items():
            if name in found:
                raise MeasurementError(f"{name} stands in two files", where=str(path))
            found[name] = math.prod(shape)
    return found
