"""Launches that look like training, in a tenth of a second and without a process.

:class:`FakeTraining` answers every launch of the plan as healthy ranks would: rank records whose
rows add up to the same global batch in every layout, checkpoints that a later launch really reads,
a small safetensors file, and the answers of the probes. A defect is a function that may change any
of it before it is written. :class:`Rig` puts a plan, a run, the gate and such launches together.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stages import environment_device, stages_of
from stages.environment_ops import MODULE as OPS
from tests import fake_collectives
from tests.builders import ROOT, check, load_plan, raw_plan
from tests.fake_captures import MOMENTS, SHAPES, Keeps
from trn_validate import plan as plans
from trn_validate import probing, runner
from trn_validate.config import Plan
from trn_validate.execute import Executor
from trn_validate.folding import fold, read_ranks
from trn_validate.gate import PASSED, Gate, Standing
from trn_validate.kernel_entry import Kernel
from trn_validate.kernel_ops import MODULE as OPCHECK
from trn_validate.ladder import resolve
from trn_validate.launch import Cause, FakeLauncher, LaunchRequest, LaunchResult
from trn_validate.launching import Trial, run_spec
from trn_validate.launching import request as request_of
from trn_validate.operation import OperationSpec
from trn_validate.progress import Progress
from trn_validate.ranks import RankRecord
from trn_validate.records import (
    Closing,
    Communication,
    Compilation,
    Header,
    Kernels,
    Moment,
    Saved,
    State,
    Step,
    Written,
    rank_file,
)
from trn_validate.runner import Runner
from trn_validate.selection import Selection
from trn_validate.session import start
from trn_validate.spec import Degrees, RunSpec
from trn_validate.stage import Context, Findings, Place, Stage
from trn_validate.store import Store
from trn_validate.target import Choice, Signs, choose
from trn_validate.verdict import Outcome, Verdict

PARTS = ("model", "optimizer", "scheduler", "data", "rng")
VOCABULARY = 2048
TENSORS = {
    "model.embed_tokens.weight": (8, 4),
    "model.layers.0.mlp.weight": (4, 4),
    "model.norm.weight": (4,),
    "lm_head.weight": (8, 4),
}
PARAMETERS = sum(math.prod(shape) for shape in TENSORS.values())
NO_SIGNS = choose(Signs())
"""What a host with no accelerator shows, and the target that this selects."""

AnyLine = Header | Step | State | Saved | Communication | Compilation | Kernels | Closing
_PIDS = count(20_000)


@dataclass
class Launch:
    """One launch before anything of it is written; a defect may change every field."""

    request: LaunchRequest
    spec: RunSpec | None = None
    lines: dict[int, list[AnyLine]] = field(default_factory=dict)
    """What each rank writes."""
    answer: dict[str, Any] | None = None
    """What a probe writes; None where it writes nothing."""
    saves: list[int] = field(default_factory=list)
    """Steps whose checkpoint is written."""
    indexed: bool = True
    """Whether the checkpoints have their .metadata."""
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """What the export holds."""
    probed: fake_collectives.Lines = field(default_factory=dict)
    """What each rank of a probe of collectives writes."""
    keeps: Keeps | None = None
    """Gradients and parameters."""
    refusal: str = ""
    """Why its checkpoint does not load; empty where it does."""
    cause: Cause = Cause.COMPLETED
    what: str = ""
    log: str = "all is well\n"

    @property
    def name(self) -> str:
        """Name of the launch, such as ``reference``."""
        return self.request.name

    @property
    def computes(self) -> bool:
        """Whether it puts tensors on the device."""
        return self.spec is not None or bool(self.probed) or OPS in self.request.argv

    def ranks(self, rank: int | None = None) -> list[int]:
        """That rank, or all."""
        return [rank] if rank is not None else list(self.lines)


Defect = Callable[[Launch], object]


class FakeTraining:
    """Handler of a :class:`FakeLauncher`; the defects are applied in their order."""

    def __init__(self, *defects: Defect) -> None:
        self.defects = list(defects)

    def __call__(self, request: LaunchRequest) -> LaunchResult:
        """Imagine the launch, spoil it, write it, and tell how it ended."""
        launch = _training(request) if request.records is not None else _probe(request)
        for defect in self.defects:
            defect(launch)
        if launch.refusal:
            launch.cause, launch.what = Cause.CRASH, f"rank 0: CheckpointError: {launch.refusal}"
            launch.lines = {rank: lines[:1] for rank, lines in launch.lines.items()}
        _write(launch)
        return LaunchResult(
            name=request.name,
            argv=request.argv,
            cause=launch.cause,
            exit_status=0 if launch.cause is Cause.COMPLETED else 1,
            seconds=0.5,
            what=launch.what,
            rank=None if launch.cause.usable else 0,
            log=request.folder / "output.log",
            excerpt="" if launch.cause.usable else launch.log,
        )


def _probe(request: LaunchRequest) -> Launch:
    if "trn_validate.workload.detect" in request.argv:
        device = request.argv[-2]
        backend = {"cpu": "gloo"}.get(device, device)
        asked = {"device": device, "backend": backend, "generation": "samples"}
        return Launch(request, answer=asked)
    if "trn_validate.lineage_probe" in request.argv:
        return Launch(request, answer=lineage_answer(request.env))
    if OPCHECK in request.argv:
        entry = Kernel.model_validate_json(Path(request.argv[-2]).read_bytes())
        return Launch(request, answer=_operator(entry.name))
    if probing.MODULE in request.argv:
        return Launch(request, probed=fake_collectives.imagined(request))
    if OPS in request.argv:
        return Launch(request, answer=operation_answer(request))
    if request.argv[0].endswith("nccom-test"):
        return Launch(request, answer=NCCOM_REPORT)
    distribution, module = request.argv[3], request.argv[-2]
    answer = {
        "module": module,
        "distribution": distribution,
        "version": "1.2.3",
        "origin": f"/site-packages/{module}/__init__.py",
        "result": "imported",
        "seconds": 0.25,
    }
    return Launch(request, answer=answer)


NCCOM_REPORT = {"results": [{"size(B)": 1024, "type": "fp32", "time:avg(us)": 6.19}]}
"""What the vendor's test of collectives reports."""


def operation_answer(request: LaunchRequest) -> dict[str, Any]:
    """What an operation that is right on the device of its spec answers."""
    spec = OperationSpec.model_validate_json(Path(request.argv[-1]).read_bytes())
    compared = [
        {"what": f"{dtype} output 0, seed {seed}", "largest": 1.1, "norm": 1.0}
        for dtype in ("float32", "bfloat16")
        for seed in (0, 1)
    ]
    return {
        "operation": spec.operation,
        "pid": next(_PIDS),
        "started": 1.5e9,
        "device": spec.device,
        "versions": {"torch": "2.14.1"},
        "hooks": [],
        "compared": compared,
        "asked": "torch_neuronx",
        "seconds": 0.1,
    }


def lineage_answer(env: Mapping[str, str]) -> dict[str, Any]:
    """What the probe of a healthy native installation writes."""
    package = "torch-neuronx 2.14.3.0.1"
    answer: dict[str, Any] = {
        "result": "imported",
        "before": {},
        "after": {},
        "backends": [{"value": "torch_neuronx:_autoload", "distribution": package}],
        "privateuse1": "privateuseone",
    }
    if env.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return answer
    return answer | {
        "after": {"NEURON_RT_DBG_ZEROCOPY": "1"},
        "privateuse1": "neuron",
        "modules": ["torch_neuronx.neuron_dynamo_backend"],
        "attributes": ["nki_op", "get_fallback_ops"],
        "available": True,
        "devices": 4,
        "chip": "trn2",
    }


def _operator(kernel: str) -> dict[str, Any]:
    names = [f"{kernel} float32, {case}: largest error" for case in ("ragged", "one row")]
    made = [check(name=name, measured=1.0, limit=2.0) for name in names]
    return {
        "provider": "interpreter",
        "reason": "nki is not there",
        "owed": names,
        "checks": [one.model_dump(mode="json", exclude={"passed"}) for one in made],
    }


def _training(request: LaunchRequest) -> Launch:
    text = (request.folder / "spec.json").read_bytes()
    return _imagine(request, RunSpec.model_validate_json(text))


def _imagine(request: LaunchRequest, spec: RunSpec) -> Launch:
    launch = Launch(request, spec, keeps=Keeps.of(spec))
    first, loaded = 1, dict[int, dict[str, str]]()
    try:
        first, loaded = _load(spec)
    except (OSError, ValueError, KeyError) as error:
        launch.refusal = f"{type(error).__name__}: {error}"
    for rank in range(spec.degrees.world_size):
        launch.lines[rank] = list(_rank_lines(spec, rank, first, loaded.get(rank, {})))
    choice = spec.checkpoint
    if choice.create_seed:
        launch.saves = [0]
    elif choice.save_interval is not None:
        launch.saves = list(range(choice.save_interval, spec.steps + 1, choice.save_interval))
        launch.lines[0][-1:-1] = [_saved(step) for step in launch.saves]
    if choice.export_safetensors:
        launch.tensors = dict(TENSORS)
    return launch


def _kernels(spec: RunSpec) -> Kernels:
    names = [use.name for use in spec.kernels]
    each = 2 * spec.steps * spec.accumulation
    return Kernels(
        provider="interpreter",
        reason="nki is not there",
        replaced=dict.fromkeys(names, ("layers.0", "layers.1")),
        left=dict.fromkeys(names, ()),
        launches={name: n * each for use in spec.kernels for name, n in use.launches.items()},
    )


def _saved(step: int) -> Saved:
    weights = {name: math.prod(shape) for name, shape in TENSORS.items()}
    moments = {
        f"optimizer.state.{name}.{moment}": math.prod(shape)
        for name, shape in SHAPES.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }
    rest = dict.fromkeys(("lr_scheduler.last_epoch", "dataloader.dp_rank_0", "train_state"), 0)
    return Saved(step=step, elements=weights | moments | rest)


def _rank_lines(
    spec: RunSpec, rank: int, first: int, loaded: Mapping[str, str]
) -> Iterator[AnyLine]:
    yield _header(spec, rank)
    if spec.checkpoint.create_seed:
        yield Closing(rank=rank, steps=0, seconds={"train": 0.1})
        return
    if 0 in spec.digest_steps:
        digests = {part: digest(part, spec, rank, first - 1) for part in PARTS} | dict(loaded)
        yield State(step=first - 1, at="start", digests=digests)
    for number in range(first, spec.steps + 1):
        yield _step(spec, rank, number)
        if number in spec.digest_steps:
            digests = {part: digest(part, spec, rank, number) for part in PARTS}
            yield State(step=number, at="end", digests=digests)
    if spec.count_communication:
        kind = "all_gather" if spec.degrees.dp_shard > 1 else "all_reduce"
        yield Communication(step=spec.steps + 1, calls={kind: 4}, bytes={kind: 4096})
    if spec.compiled is not None:
        yield Compilation(
            blocks=spec.model.layers or 2, graphs=3, calls=18, compiled_calls=18, seconds=9.0
        )
    if spec.kernels:
        yield _kernels(spec)
    yield Closing(rank=rank, steps=spec.steps - first + 1, seconds={"train": 1.0})


def _header(spec: RunSpec, rank: int) -> Header:
    sizes = [math.prod(shape) for shape in TENSORS.values()]
    return Header(
        launch="fake",
        rank=rank,
        local_rank=rank,
        world_size=spec.degrees.world_size,
        dp_rank=_dp_rank(spec.degrees, rank),
        pid=next(_PIDS),
        started=1.5e9,
        python="3.11.7",
        versions={"torch": "2.14.1", "torchtitan": "0.3.0"},
        torchtitan_device=spec.device,
        parameter_device=spec.device,
        comm_backend={"cpu": "gloo"}.get(spec.device, spec.device),
        degrees=spec.degrees,
        local_batch_size=spec.local_batch_size,
        accumulation=spec.accumulation,
        parameters=sum(sizes[_pp_rank(spec.degrees, rank) :: spec.degrees.pp]),
        vocab_size=VOCABULARY,
        threads=1,
        replaced=("trainer", "dataloader"),
        hooks=spec.hooks,
    )


def _pp_rank(degrees: Degrees, rank: int) -> int:
    return rank * degrees.pp // degrees.world_size


def _dp_rank(degrees: Degrees, rank: int) -> int:
    """Mesh axes from the outermost: pp, dp_replicate, dp_shard, cp, tp."""
    return rank // (degrees.cp * degrees.tp) % degrees.data_parallel


def _step(spec: RunSpec, rank: int, number: int) -> Step:
    last_stage = _pp_rank(spec.degrees, rank) == spec.degrees.pp - 1
    # Another order of summation moves the last digits, as it does in real training.
    shift = 4.8e-7 if str(spec.degrees) != "one process" or spec.accumulation > 1 else 0.0
    return Step(
        step=number,
        loss=7.68 - 0.04 * number + shift if last_stage else -1.0,
        loss_here=last_stage,
        grad_norm=1.6 * 0.97**number * (1 + shift),
        learning_rate=4e-4,
        tokens=spec.tokens_per_step // spec.degrees.data_parallel,
        rows=_rows(spec, number, _dp_rank(spec.degrees, rank)),
        row_count=spec.global_batch_size // spec.degrees.data_parallel,
        shapes=((spec.local_batch_size, spec.seq_len),),
        seconds={"total": 0.5},
        peak_memory_bytes=2**30,
    )


def _rows(spec: RunSpec, number: int, dp_rank: int) -> str:
    samples = range(dp_rank, spec.global_batch_size, spec.degrees.data_parallel)
    total = sum(
        int(hashlib.sha256(f"{spec.seed} {number} {sample}".encode()).hexdigest()[:32], 16)
        for sample in samples
    )
    return f"{total % 2**128:032x}"


def digest(part: str, spec: RunSpec, rank: int, step: int) -> str:
    """Digest of a part of a rank's state after a step."""
    return hashlib.sha256(f"{part} {spec.degrees} {rank} {step}".encode()).hexdigest()


def _load(spec: RunSpec) -> tuple[int, dict[int, dict[str, str]]]:
    """First step to take, and what each rank found in the checkpoint of its spec."""
    choice = spec.checkpoint
    if choice.load_safetensors:
        (file,) = Path(choice.load_path or "").glob("*.safetensors")
        with file.open("rb") as data:
            (length,) = struct.unpack("<Q", data.read(8))
            return 1, {0: {"model": json.loads(data.read(length))["__metadata__"]["model"]}}
    if choice.load_path is not None:
        folder = Path(choice.load_path)
        _read_shard(folder, 0)
        return 1, {}
    if not choice.resume:
        return 1, {}
    steps = (Path(spec.dump) / "checkpoint").glob("step-*")
    folder = max(steps, key=lambda path: int(path.name.removeprefix("step-")))
    found = {rank: _read_shard(folder, rank) for rank in range(spec.degrees.world_size)}
    return int(folder.name.removeprefix("step-")) + 1, found


def _read_shard(folder: Path, rank: int) -> dict[str, str]:
    (folder / ".metadata").read_bytes()
    found: dict[str, str] = json.loads((folder / f"__{rank}_0.distcp").read_text())
    return found


def _write(launch: Launch) -> None:
    folder = launch.request.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "output.log").write_text(launch.log)
    if launch.answer is not None:
        # A probe that is told by a spec has its answer beside it.
        name = "answer.json" if OPS in launch.request.argv else launch.request.argv[-1]
        (folder / name).write_text(json.dumps(launch.answer))
    if launch.probed:
        fake_collectives.write(launch.request, launch.probed)
    if launch.spec is None:
        return
    records = Path(launch.spec.records)
    records.mkdir()
    for rank, lines in launch.lines.items():
        text = "".join(
            line.model_dump_json() + "\n" for line in _with_captures(launch, rank, lines)
        )
        rank_file(records, rank).write_text(text)
    if launch.refusal:
        return
    if launch.keeps is not None:
        launch.keeps.write()
    checkpoints = Path(launch.spec.dump) / "checkpoint"
    for step in launch.saves:
        _save(checkpoints / f"step-{step}", launch.spec, step)
        if not launch.indexed:
            (checkpoints / f"step-{step}" / ".metadata").unlink()
    if launch.tensors:
        _export(checkpoints / f"step-{launch.spec.steps}", launch.spec, launch.tensors)


def _with_captures(launch: Launch, rank: int, lines: list[AnyLine]) -> Iterator[Written]:
    """The rank's lines, and between them what it kept, where a real rank writes it."""
    spec, keeps = launch.spec, launch.keeps
    if spec is None or keeps is None or not keeps.arrays:
        yield from lines
        return
    left: list[Moment] = [m for m in MOMENTS if (rank, m) not in keeps.forgotten]
    for line in lines:
        begins = isinstance(line, Step) and line.step == 1
        if begins:
            yield from (keeps.line(rank, m) for m in left if m != "end")
        yield line
        if isinstance(line, Step) and line.step == spec.steps and "end" in left:
            yield keeps.line(rank, "end")


def _save(folder: Path, spec: RunSpec, step: int) -> None:
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(b"which shard holds what")
    for rank in range(spec.degrees.world_size):
        shard = {part: digest(part, spec, rank, step) for part in PARTS}
        (folder / f"__{rank}_0.distcp").write_text(json.dumps(shard))


def _export(folder: Path, spec: RunSpec, tensors: Mapping[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"model": digest("model", spec, 0, spec.steps)}}
    offset = 0
    for name, shape in tensors.items():
        size = 4 * math.prod(shape)
        offsets = [offset, offset + size]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        offset += size
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model-00001-of-00001.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


# Defects


def within(name: str, defect: Defect) -> Defect:
    """The defect, in the launch of that name alone."""

    def apply(launch: Launch) -> None:
        if launch.name == name:
            defect(launch)

    return apply


def altered(
    kind: type[AnyLine],
    *,
    rank: int | None = None,
    step: int | None = None,
    at: str | None = None,
    **changes: Any,
) -> Defect:
    """A defect that changes fields of lines; a change may be a function of the old value."""

    def wanted(line: AnyLine) -> bool:
        if not isinstance(line, kind):
            return False
        return (step is None or getattr(line, "step", None) == step) and (
            at is None or getattr(line, "at", None) == at
        )

    def change(line: AnyLine) -> AnyLine:
        new = {
            name: value(getattr(line, name)) if callable(value) else value
            for name, value in changes.items()
        }
        return line.model_copy(update=new)

    def apply(launch: Launch) -> None:
        for one in launch.ranks(rank):
            lines = launch.lines.get(one, [])
            launch.lines[one] = [change(line) if wanted(line) else line for line in lines]

    return apply


def without(kind: type[AnyLine], *, rank: int | None = None, step: int | None = None) -> Defect:
    """A defect that takes lines away; the closing line counts the steps that are left."""

    def kept(line: AnyLine) -> bool:
        return not isinstance(line, kind) or (
            step is not None and getattr(line, "step", None) != step
        )

    def apply(launch: Launch) -> None:
        for one in launch.ranks(rank):
            lines = [line for line in launch.lines[one] if kept(line)]
            steps = sum(isinstance(line, Step) for line in lines)
            launch.lines[one] = [
                line.model_copy(update={"steps": steps}) if isinstance(line, Closing) else line
                for line in lines
            ]

    return apply


def bent(moment: str, change: Callable[[Any], Any], *names: str) -> Defect:
    """A defect that changes what was kept of these parameters, or of all."""

    def apply(launch: Launch) -> None:
        arrays = launch.keeps.arrays.get(moment, {}) if launch.keeps else {}
        for name in names or tuple(arrays):
            if name in arrays:
                # A view that runs backwards would be written from its last number on.
                arrays[name] = np.ascontiguousarray(change(arrays[name]))

    return apply


def doubled(array: Any) -> Any:
    """A change for :func:`bent`: twice as large."""
    return 2 * array


def added(moment: str, name: str, array: Any) -> Defect:
    """A defect in which one parameter more is kept."""
    return _keeping(lambda keeps: keeps.arrays[moment].update({name: array}))


def lacking(moment: str, *names: str, asked: bool = True) -> Defect:
    """A defect in which nothing is kept of these parameters.

    A gradient is then absent, if the parameter ``asked`` for one.
    """

    def change(keeps: Keeps) -> None:
        for name in names:
            del keeps.arrays[moment][name]
            if moment == "gradient" and asked:
                keeps.absent.append(name)

    return _keeping(change)


def drifted(rank: int, moment: str, name: str) -> Defect:
    """A defect in which a rank's copy of a parameter is not that of the others."""

    def change(keeps: Keeps) -> None:
        keeps.drifted = (rank, moment, name)

    return _keeping(change)


def unwritten(moment: str) -> Defect:
    """A defect in which the files of a moment are not written."""
    return _keeping(lambda keeps: keeps.unwritten.add(moment))


def forgotten(moment: str, rank: int) -> Defect:
    """A defect in which a rank records nothing of a moment."""
    return _keeping(lambda keeps: keeps.forgotten.add((rank, moment)))


def _keeping(change: Callable[[Keeps], object]) -> Defect:
    def apply(launch: Launch) -> None:
        if launch.keeps is not None and launch.keeps.arrays:
            change(launch.keeps)

    return apply


def other_state(part: str, at: str, *, rank: int | None = None) -> Defect:
    """A defect in which one part of the recorded state is another."""
    return altered(State, rank=rank, at=at, digests=lambda old: old | {part: "0" * 64})


def ends(
    cause: Cause,
    what: str = "it broke",
    log: str = "Traceback: it broke\n",
    *,
    after: int = 2,
) -> Defect:
    """A defect in which the launch ends badly after so many steps."""

    def apply(launch: Launch) -> None:
        launch.cause, launch.what, launch.log = cause, what, log
        for rank, lines in launch.lines.items():
            early = (line for line in lines if getattr(line, "step", 0) <= after)
            launch.lines[rank] = [line for line in early if not isinstance(line, Closing)]

    return apply


def probe(*spoils: fake_collectives.Spoil) -> Defect:
    """A defect in what the ranks of a probe of collectives write."""

    def apply(launch: Launch) -> None:
        if launch.probed:
            for spoil in spoils:
                spoil(launch.probed)

    return apply


def accepted(launch: Launch) -> None:
    """A defect in which a checkpoint that does not load is trained on all the same."""
    launch.refusal = ""


def raises(error: Exception) -> Defect:
    """A defect in which the launch raises in the pipeline itself."""

    def apply(launch: Launch) -> None:
        raise error

    return apply


# A run around it


def calm_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host have enough of everything, whatever it has."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**50, total=2**50))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**20, 2**20))
    monkeypatch.setattr(environment_device, "available_gib", lambda: 4096.0)
    monkeypatch.setattr(environment_device, "find_strays", list)
    # Strays of other tests are theirs to end.
    monkeypatch.setattr(runner, "find_strays", list)
    # Nothing here has to survive a loss of power, and waiting for the disk takes most of the time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def cpu_plan(*settings: str) -> Plan:
    """The plan that a host without accelerators gets."""
    return plans.load(ROOT / "configs" / "cpu.yaml", settings=settings)


def ladder_plan(folder: Path, *settings: str) -> Plan:
    """One process, then data shards on it, then tensor parallelism on those."""
    raw = raw_ladder_plan()
    folder.mkdir(parents=True, exist_ok=True)
    return load_plan(folder, *settings, raw=raw)


def raw_ladder_plan() -> dict[str, Any]:
    """The file of :func:`ladder_plan`."""
    raw = raw_plan()
    raw["paths"]["native"]["ladders"][0]["rungs"] = [
        {"name": "baseline"},
        {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
        {"name": "tp", "extends": "fsdp", "tp": 2},
    ]
    return raw


def two_ladders_plan(folder: Path) -> Plan:
    """The ladder of :func:`ladder_plan`, and one that starts at two ranks."""
    raw = raw_ladder_plan()
    second = json.loads(json.dumps(raw["paths"]["native"]["ladders"][0]))
    second["name"] = "full"
    second["rungs"] = [
        {"name": "full_fsdp", "dp_shard": 2},
        {"name": "full_tp", "extends": "full_fsdp", "tp": 2},
    ]
    raw["paths"]["native"]["ladders"].append(second)
    folder.mkdir(parents=True, exist_ok=True)
    return load_plan(folder, raw=raw)


@dataclass
class Stub:
    """A stage that does what it is told."""

    id: str
    act: Callable[[Context], Findings]
    depends: object = None
    outside: dict[str, str] = field(default_factory=dict)
    asks: str = "does the stub hold?"
    ran: int = 0

    def reads(self, plan: Plan) -> object:
        """What it was made to depend on."""
        return self.depends

    def external(self, plan: Plan) -> dict[str, str]:
        """What it was made to depend on outside the plan."""
        return self.outside

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """Nothing."""
        return ()

    def run(self, context: Context) -> Findings:
        """Count, and act."""
        self.ran += 1
        return self.act(context)


def holding(context: Context) -> Findings:
    """Findings of a stage that passes."""
    return Findings(expects=("it holds",), checks=[check(name="it holds")])


def not_holding(context: Context) -> Findings:
    """Findings of a stage that fails."""
    return Findings(expects=("it holds",), checks=[check(name="it holds", measured=2.0)])


def tree(folder: Path) -> dict[str, bytes]:
    """Every file and folder under a folder, with its contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


class Rig:
    """A run of its own, whose launches are imagined.

    ``plan``, ``code`` and ``environment`` may be replaced between two walks.
    """

    def __init__(
        self,
        folder: Path,
        *defects: Defect,
        plan: Plan | None = None,
        choice: Choice = NO_SIGNS,
        stages: Sequence[Stage] | None = None,
    ) -> None:
        self.plan = plan or ladder_plan(folder)
        self.stages = stages
        self.choice = choice
        self.code = "1" * 64
        self.environment = {"os": "a machine"}
        self.training = FakeTraining(*defects)
        self.launcher = FakeLauncher(self.training)
        self.store = Store(folder / "reports")
        self.run = start(self.store, self.plan, self.environment)

    @property
    def gate(self) -> Gate:
        """The gate, with the plan, code and environment as they are now."""
        stages = self.stages or stages_of(self.plan)
        return Gate(self.plan, stages, self.run, code=self.code, environment=self.environment)

    @property
    def executor(self) -> Executor:
        """The executor of the run."""
        return Executor(plan=self.plan, run=self.run, launcher=self.launcher, choice=self.choice)

    def walk(self, **selection: Any) -> int:
        """Run what is selected; gives the exit status."""
        progress = Progress(len(self.gate.stages))
        return Runner(self.gate, self.executor, progress, Selection(**selection)).run()

    def spoil(self, *defects: Defect) -> None:
        """Have these defects from now on, and no others."""
        self.training.defects[:] = defects

    def rerun(self, stage: str, *defects: Defect) -> Verdict:
        """The verdict of one stage that is run alone with these defects."""
        self.spoil(*defects)
        try:
            self.walk(only=stage)
        finally:
            self.spoil()
        return self.verdict(stage)

    def context(self, stage: str) -> Context:
        """What a stage would be given in a new attempt."""
        earlier = {s.stage.id: s.verdict for s in self.gate.standings() if s.verdict is not None}
        return Context(
            plan=self.plan,
            stage=stage,
            run=self.run,
            attempt=self.run.new_attempt(stage),
            launcher=self.launcher,
            choice=self.choice,
            earlier=earlier,
            say=lambda text: None,
        )

    def standing(self, stage: str) -> Standing:
        """How a stage stands now."""
        return next(s for s in self.gate.standings() if s.stage.id == stage)

    def verdict(self, stage: str) -> Verdict:
        """The verdict of a stage, which has to be there."""
        found = self.run.read(stage)
        assert found is not None, f"{stage} has no verdict"
        return found

    def outcomes(self) -> dict[str, str]:
        """Outcome of every stage, or ``-``."""
        return {
            s.stage.id: s.verdict.outcome.value if s.verdict else "-" for s in self.gate.standings()
        }

    def launched(self) -> list[str]:
        """Names of all launches so far."""
        return [request.name for request in self.launcher.requests]


@contextmanager
def climbed(folder: Path, plan: Plan | None = None) -> Iterator[Rig]:
    """A run in which every stage passed, on a host that has enough of everything."""
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        rig = Rig(folder, plan=plan)
        assert rig.walk() == PASSED
        yield rig


def failing(verdict: Verdict) -> list[str]:
    """Names of the checks that said no, of a verdict that says so and owes nothing else."""
    assert verdict.outcome is Outcome.FAILED, f"{verdict.outcome}: {verdict.problem}"
    return [check.name for check in verdict.failed_checks]


def imagined(
    plan: Plan,
    name: str,
    *defects: Defect,
    fields: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Trial:
    """A finished launch of the rung of that name, of which nothing is written.

    ``changes`` are arguments of :func:`trn_validate.launching.run_spec`, ``fields`` those of the
    spec that it makes.
    """
    launch = _launched(plan, name, defects, changes, fields or {})
    result = LaunchResult(
        name=name, argv=(), cause=launch.cause, exit_status=0, seconds=0.5, what=launch.what
    )
    return Trial(launch.spec, result, fold(_records(launch).items()))


def imagined_ranks(plan: Plan, name: str, *defects: Defect) -> dict[int, RankRecord]:
    """What each rank of an imagined launch recorded, line by line."""
    return _records(_launched(plan, name, defects, {}, {}))


def _launched(
    plan: Plan,
    name: str,
    defects: Iterable[Defect],
    changes: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> Launch:
    rung = next(r for ladder in plan.ladders for r in resolve(ladder) if r.name == name)
    spec = run_spec(plan, rung, name, Path("unwritten"), **changes).model_copy(update=fields)
    launch = _imagine(request_of(plan, spec), spec)
    for defect in defects:
        defect(launch)
    return launch


def _records(launch: Launch) -> dict[int, RankRecord]:
    return {
        rank: RankRecord.of(list(_with_captures(launch, rank, lines)))
        for rank, lines in launch.lines.items()
        if any(isinstance(line, Header) for line in lines)
    }


def carried_out(folder: Path, plan: Plan, name: str, *defects: Defect, **changes: Any) -> Trial:
    """A finished launch of the rung of that name, written below ``folder`` and read back.

    ``changes`` are fields of the run spec; the launch is called ``name`` unless they say so.
    """
    rung = next(r for ladder in plan.ladders for r in resolve(ladder) if r.name == name)
    spec = run_spec(plan, rung, changes.pop("called", name), folder, captures=True)
    spec = spec.model_copy(update=changes)
    request = request_of(plan, spec)
    request.folder.mkdir(parents=True)
    (request.folder / "spec.json").write_text(spec.model_dump_json())
    result = FakeTraining(*defects)(request)
    return Trial(spec, result, read_ranks(Path(spec.records), spec.degrees.world_size))
