"""Small factories that several tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trn_validate import plan
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.errors import ConfigError
from trn_validate.folded import GlobalStep
from trn_validate.records import Captured, Closing, Header, State, Step
from trn_validate.spec import Degrees, RunSpec
from trn_validate.verdict import Artifact, Compared, Execution, Host, Layout, Thing, Verdict

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.yaml") if path.stem != "kernels")
"""The plans; the list of kernels is none."""
SHA = "ab" * 32


def check(**changes: Any) -> Check:
    """A check that holds."""
    values: dict[str, Any] = {
        "name": "loss is finite",
        "measured": 0.5,
        "comparator": "<=",
        "limit": 1.0,
        "source": "config",
    }
    return Check(**(values | changes))


def thing(**changes: Any) -> Thing:
    """One side of a comparison."""
    values: dict[str, Any] = {
        "name": "reference",
        "attempt": "baseline.eager/1",
        "processes": ("101 of 1.00",),
        "layout": "one process",
    }
    return Thing(**(values | changes))


def compared(
    differ: str = "layout",
    *,
    reference: Mapping[str, Any] | None = None,
    candidate: Mapping[str, Any] | None = None,
) -> Compared:
    """A comparison of two things that differ in every respect, but for the changes."""
    other = {
        "name": "fsdp",
        "attempt": "parallelism.fsdp/1",
        "processes": ("201 of 1.00", "202 of 1.00"),
        "layout": "dp_shard2",
    }
    return Compared(
        reference=thing(**(reference or {})),
        candidate=thing(**(other | dict(candidate or {}))),
        differ=differ,  # type: ignore[arg-type]  # wrong ones are refused by the model
    )


def host(**changes: Any) -> Host:
    """A Trn2 that shows itself."""
    values: dict[str, Any] = {
        "root": "/",
        "target": "trn2.48xlarge",
        "reason": "16 PCI functions of a Trn2",
        "trn2_functions": 16,
    }
    return Host(**(values | changes))


def verdict(**changes: Any) -> Verdict:
    """A passed verdict of a stage that compares two layouts."""
    values: dict[str, Any] = {
        "stage": "parallelism.fsdp",
        "path": "native",
        "run": "cpu.native.20250101T000000Z",
        "attempt": 1,
        "host": host(),
        "device": "neuron",
        "execution": Execution(distribution="torch-neuronx 2.9.0", before=3, after=40),
        "expects": ("loss is finite",),
        "checks": (check(),),
        "compared": (compared(),),
        "layout": layout(),
        "measures": {"tokens_per_second": 1234.5},
        "series": {"loss": (7.6, 7.5)},
        "facts": {"lineage": "native"},
        "versions": {"torch": "2.9.0"},
        "artifacts": (Artifact(path="parallelism.fsdp/1/rank-0.jsonl", sha256=SHA, bytes=12),),
        "started_at": "2025-01-01T00:00:00Z",
        "seconds": 12.5,
        "builds_on": {"baseline.eager": SHA},
        "inputs": {"plan": SHA},
        "inputs_sha256": SHA,
    }
    return Verdict(**(values | changes))


def layout(**changes: Any) -> Layout:
    """The layout of two ranks that shard the data."""
    values: dict[str, Any] = {
        "model": "torchtitan.models.qwen3 debugmodel",
        "processes": 2,
        "degrees": Degrees(dp_shard=2),
        "global_batch_size": 4,
        "seq_len": 256,
        "tokens_per_step": 1024,
        "local_batch_size": 2,
        "accumulation": 1,
        "compute_dtype": "float32",
        "attention": "dense_mask",
        "spmd_backend": "spmd_types",
        "sequence_parallel": True,
    }
    return Layout(**(values | changes))


def run_spec(**changes: Any) -> RunSpec:
    """What the ranks of a one-process launch are told."""
    values: dict[str, Any] = {
        "name": "baseline",
        "records": "records",
        "dump": "dump",
        "stacks": "stacks",
        "device": "cpu",
        "model": {"module": "torchtitan.models.qwen3", "flavor": "debugmodel"},
        "data": {},
        "degrees": {},
        "seq_len": 256,
        "global_batch_size": 4,
        "local_batch_size": 4,
        "steps": 6,
        "seed": 42,
        "compute_dtype": "float32",
        "attention": "dense_mask",
        "activation_checkpointing": "none",
        "spmd_backend": "spmd_types",
        "sequence_parallel": True,
        "learning_rate": 8e-4,
        "warmup_steps": 2,
        "init_timeout_seconds": 150,
        "train_timeout_seconds": 100,
    }
    return RunSpec(**(values | changes))


def header(**changes: Any) -> Header:
    """What rank 0 of one process found."""
    values: dict[str, Any] = {
        "launch": "launch-1",
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "dp_rank": 0,
        "pid": 101,
        "started": 1.5e9,
        "python": "3.11.0",
        "versions": {"torch": "2.9.0"},
        "torchtitan_device": "cpu",
        "parameter_device": "cpu",
        "comm_backend": "gloo",
        "degrees": Degrees(),
        "local_batch_size": 4,
        "accumulation": 1,
        "parameters": 1000,
        "vocab_size": 2048,
        "threads": 1,
        "replaced": (),
        "hooks": (),
    }
    return Header(**(values | changes))


def step(number: int, **changes: Any) -> Step:
    """An optimizer step with finite figures."""
    values: dict[str, Any] = {
        "step": number,
        "loss": 7.5,
        "loss_here": True,
        "grad_norm": 1.5,
        "learning_rate": 8e-4,
        "tokens": 1024,
        "rows": "0" * 32,
        "row_count": 4,
        "shapes": ((4, 256),),
        "seconds": {"total": 0.5},
        "peak_memory_bytes": 1,
    }
    return Step(**(values | changes))


def global_step(number: int, **changes: Any) -> GlobalStep:
    """The same step over all ranks."""
    values: dict[str, Any] = {
        "step": number,
        "loss": 7.6 - 0.1 * number,
        "grad_norm": 1.5,
        "tokens": 1024,
        "rows": f"{number:032x}",
        "loss_spread": 0.0,
        "norm_spread": 0.0,
        "split": "",
        "seconds": 1.0,
        "peak_memory_bytes": 1,
    }
    return GlobalStep(**(values | changes))


def state(number: int, at: str = "end") -> State:
    """Digests of the state at a step."""
    return State(step=number, at=at, digests={"model": SHA})  # type: ignore[arg-type]


def captured(what: str, **changes: Any) -> Captured:
    """One parameter that the only rank of a stage kept."""
    values: dict[str, Any] = {
        "what": what,
        "mode": "full",
        "stage": 0,
        "file": f"{what}.stage-0.safetensors",
        "norms": {"norm.weight": 2.0},
        "digests": {"norm.weight": SHA},
        "seconds": 0.1,
    }
    return Captured(**(values | changes))


def closing(steps: int) -> Closing:
    """The last line of a rank that counted so many steps."""
    return Closing(rank=0, steps=steps, seconds={"train": 1.0})


def raw_plan() -> dict[str, Any]:
    """A plan on 64 cores with one ladder: one process, then dp_shard 2 on it."""
    return {
        "target": "cpu",
        "profile": {
            "device": "cpu",
            "cores": 64,
            "memory_gib_per_core": 1.5,
            "process_group": "gloo",
            "compile_backend": "inductor",
        },
        "limits": {
            "first_loss_absolute": 0.2,
            "loss_fall": 0.02,
            "rerun_loss_absolute": 0.0,
            "float32": raw_deviations(),
        },
        "timeouts": {"wall": 600, "silence": 180},
        "paths": {"native": {"ladders": [raw_ladder()]}},
    }


def raw_deviations() -> dict[str, Any]:
    """Bounds on the distance between two layouts in float32."""
    return {
        "loss_absolute": {"floor": 5e-6, "ceiling": 5e-5},
        "grad_norm_relative": {"floor": 1e-4, "ceiling": 1e-3},
        "gradient_relative": {"floor": 1e-5, "ceiling": 1e-4},
        "parameter_relative": {"floor": 1e-3, "ceiling": 2e-2},
    }


def raw_ladder() -> dict[str, Any]:
    """The ladder of :func:`raw_plan`."""
    return {
        "name": "debug",
        "model": {
            "module": "torchtitan.models.qwen3",
            "flavor": "debugmodel",
            "layers": 2,
            "tied": False,
        },
        "workload": {
            "seq_len": 256,
            "global_batch_size": 4,
            "steps": 6,
            "attention": "dense_mask",
        },
        "rungs": [{"name": "baseline"}, {"name": "next", "extends": "baseline", "dp_shard": 2}],
    }


def write_plan(folder: Path, raw: Mapping[str, Any] | str) -> Path:
    """The file of a plan."""
    path = folder / "plan.yaml"
    text = raw if isinstance(raw, str) else yaml.safe_dump(dict(raw), sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path


def load_plan(
    folder: Path,
    *settings: str,
    raw: Mapping[str, Any] | str | None = None,
    model_path: str = "native",
) -> Plan:
    """A plan, :func:`raw_plan` unless another is given, read with settings on top."""
    path = write_plan(folder, raw_plan() if raw is None else raw)
    return plan.load(path, model_path=model_path, settings=settings)


def ladder_of(folder: Path, rungs: Sequence[Mapping[str, Any]], **workload: Any) -> Plan:
    """The plan of :func:`raw_plan` with other rungs, and changes of its workload."""
    raw = raw_plan()
    ladder = raw["paths"]["native"]["ladders"][0]
    ladder["rungs"] = list(rungs)
    ladder["workload"] |= workload
    return load_plan(folder, raw=raw)


def plan_refusal(
    folder: Path, *settings: str, raw: Mapping[str, Any] | str | None = None
) -> ConfigError:
    """The error by which a plan is refused; a plan that is accepted fails the test."""
    try:
        accepted = load_plan(folder, *settings, raw=raw)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1, "a refusal is one line"
        return error
    raise AssertionError(f"accepted: {accepted}")
