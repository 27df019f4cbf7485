"""The records that cross the border between the pipeline and the ranks.

The pipeline writes one :class:`RunSpec` per launch; each rank appends to
``rank-<r>.jsonl`` a :class:`Header`, its :class:`Step` and :class:`State`
lines, and, only if it got there, a :class:`Closing`. A rank that raises leaves a
:class:`Failure` in a file of its own. Nothing here imports torch, so that both
sides read the same types.
"""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

ATTENTION = Literal["dense_mask", "causal", "stock"]
DTYPE = Literal["float32", "bfloat16"]
SPMD = Literal["spmd_types", "partial_dtensor"]
RECOMPUTE = Literal["none", "selective", "full"]
CAPTURE = Literal["none", "full", "sketch"]

AXES = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")
"""Mesh axes in torchtitan's names; every one of them is a degree, 1 when unused."""


_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def revive(value: object) -> object:
    """Turn the three texts that stand for non-finite numbers back into floats."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


Real = Annotated[
    float,
    BeforeValidator(revive),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_NON_FINITE)}]}),
]
"""A float that may be NaN or infinite and survives JSON."""


class Record(BaseModel):
    """Base of everything that is written: strict, closed and immutable.

    Non-finite numbers are kept as the texts NaN, Infinity and -Infinity, since a
    bad value has to survive into the verdict.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="strings")


class Degrees(Record):
    """One layout: how many ranks each mesh axis has."""

    dp_replicate: Annotated[int, Field(ge=1)] = 1
    dp_shard: Annotated[int, Field(ge=1)] = 1
    tp: Annotated[int, Field(ge=1)] = 1
    cp: Annotated[int, Field(ge=1)] = 1
    pp: Annotated[int, Field(ge=1)] = 1
    ep: Annotated[int, Field(ge=1)] = 1

    @property
    def world_size(self) -> int:
        """Number of processes; ep is laid over ranks that exist already."""
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp

    @property
    def data_parallel(self) -> int:
        """Ranks that see different samples; tp, cp, pp and ep do not count."""
        return self.dp_replicate * self.dp_shard

    def __str__(self) -> str:
        used = [f"{axis}{getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return " x ".join(used) or "one process"


class ModelChoice(Record):
    """Which model: a torchtitan registry and what is changed in its flavour."""

    module: str
    flavor: str
    layers: Annotated[int, Field(ge=1)] | None = None
    """Keep the first so many layers; None keeps all."""
    tied: bool | None = None
    """Tie the head to the embedding; None leaves the flavour as it is."""


class DataChoice(Record):
    """What is trained on: samples computed from the seed, or a local text file."""

    kind: Literal["synthetic", "text"] = "synthetic"
    path: str | None = None
    sha256: str | None = None
    """Digest of the text file, filled in when the plan is read."""


class CheckpointChoice(Record):
    """What a launch loads and saves."""

    create_seed: bool = False
    load_path: str | None = None
    """Absolute path of a checkpoint whose weights to start from."""
    load_safetensors: bool = False
    """``load_path`` holds safetensors in the Hugging Face layout."""
    resume: bool = False
    """Continue from the newest checkpoint in the dump folder: the whole state."""
    save_interval: int | None = None
    """Save every so many steps; None saves nothing."""
    export_safetensors: bool = False
    """Write the last step as safetensors, model only."""


class CompileChoice(Record):
    """How a launch compiles; without one it runs eagerly."""

    backend: str
    """Dynamo backend, by the name under which it is registered."""


class RunSpec(Record):
    """All that the ranks of one launch are told."""

    schema_version: Literal[1] = 1
    name: str
    records: str
    """Folder that the ranks write their records to."""
    dump: str
    """torchtitan's dump folder."""
    stacks: str
    """Folder for the stacks that the supervisor asks for."""
    device: Literal["cpu", "neuron"]
    model: ModelChoice
    data: DataChoice
    degrees: Degrees
    seq_len: int
    global_batch_size: int
    local_batch_size: int
    steps: int
    seed: int
    compute_dtype: DTYPE
    attention: ATTENTION
    activation_checkpointing: RECOMPUTE
    spmd_backend: SPMD
    sequence_parallel: bool
    learning_rate: float
    warmup_steps: int
    init_timeout_seconds: int
    train_timeout_seconds: int
    checkpoint: CheckpointChoice = CheckpointChoice()
    digest_steps: tuple[int, ...] = ()
    """Steps after which the state's digests are recorded; 0 is before the first step taken."""
    capture: CAPTURE = "none"
    """Whether gradients and parameters are kept: whole, or as a sketch of each."""
    keep_start: bool = False
    """Keep the parameters before step 1 too; without it only their digests are recorded."""
    perturb: Annotated[int, Field(ge=0)] = 0
    """Move every weight by one unit in the last place of the compute dtype before step 1.

    Up or down at random, by this seed; 0 moves none.
    """
    count_communication: bool = False
    """Take one more step after the last, and count what it communicates."""
    compiled: CompileChoice | None = None
    hooks: tuple[str, ...] = ()
    """Import paths ``module:function`` that alter the trainer's config; tests alone set them."""

    @property
    def accumulation(self) -> int:
        """Micro-batches of one rank per optimizer step."""
        return self.global_batch_size // (self.local_batch_size * self.degrees.data_parallel)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that all ranks together consume in one optimizer step."""
        return self.global_batch_size * self.seq_len


class Header(Record):
    """What a rank found when it had built its trainer."""

    kind: Literal["header"] = "header"
    launch: str
    rank: int
    local_rank: int
    world_size: int
    dp_rank: int
    """Position along the data axes: ranks with equal dp_rank see the same samples."""
    pid: int
    python: str
    versions: dict[str, str]
    torchtitan_device: str
    """``torchtitan.tools.utils.device_type``."""
    parameter_device: str
    """Device type on which the parameters really are."""
    comm_backend: str
    degrees: Degrees
    """As torchtitan built them, not as they were asked for."""
    local_batch_size: int
    accumulation: int
    parameters: int
    """Elements of this rank's pipeline stage, before any sharding."""
    vocab_size: int
    threads: int
    replaced: tuple[str, ...]
    """Torchtitan components that the workload put its own in place of."""
    hooks: tuple[str, ...]


class Step(Record):
    """One optimizer step as one rank saw it."""

    kind: Literal["step"] = "step"
    step: int
    loss: Real
    """Mean cross entropy over the global batch; -1 where pp keeps it on another stage."""
    loss_here: bool
    grad_norm: Real
    """Global gradient norm before clipping."""
    learning_rate: float
    tokens: int
    """Label tokens that this rank's forward really received in this step, before cp splits them."""
    rows: str
    """Sum modulo 2**128 of the digests of the rows that entered forward, in hexadecimal."""
    row_count: int
    shapes: tuple[tuple[int, ...], ...]
    """Distinct shapes of the input, (batch, sequence)."""
    seconds: dict[str, float]
    """Wall seconds by phase: data, forward_backward, optimizer, probe, capture, total."""
    peak_memory_bytes: int


class State(Record):
    """Digests of everything that a resumed run must have again."""

    kind: Literal["state"] = "state"
    step: int
    at: Literal["start", "end"]
    """``start``: before the first step taken; ``end``: after step ``step``."""
    digests: dict[str, str]
    """model, optimizer, scheduler, data and rng: sha256 over this rank's shards."""


class Captured(Record):
    """The tensors of this rank's pipeline stage at one moment, gathered whole.

    Every rank that shares a stage has gathered them itself, so equal digests say that the
    copies agree; the first of them writes the file.
    """

    kind: Literal["captured"] = "captured"
    what: Literal["start", "gradient", "end"]
    """Parameters before step 1, gradients of step 1 before clipping, parameters at the end."""
    mode: CAPTURE
    stage: int
    """Pipeline stage, counted from the first."""
    file: str | None
    """Name of the safetensors file in the captures folder; None where this rank wrote none."""
    norms: dict[str, Real]
    """L2 norm of each whole tensor, by parameter in forward order."""
    digests: dict[str, str]
    """sha256 of each tensor as a file would hold it."""
    absent: tuple[str, ...] = ()
    """Parameters that have no gradient."""
    seconds: float


class Communication(Record):
    """What one step made this rank communicate; one step more than those that are judged."""

    kind: Literal["communication"] = "communication"
    step: int
    calls: dict[str, int]
    """Calls by kind: all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, send, recv."""
    bytes: dict[str, int]
    """Bytes of this rank's tensors by kind: the larger of input and output of each call."""


class Compilation(Record):
    """What Dynamo did on this rank."""

    kind: Literal["compilation"] = "compilation"
    blocks: int
    """Blocks of the model that torchtitan compiled, on this rank."""
    graphs: int
    """Graphs that Dynamo made; blocks that are alike share one."""
    calls: int
    compiled_calls: int
    """Calls of what torchtitan compiled that ran compiled code."""
    eager: tuple[str, ...] = ()
    """What fell back to eager, by step and name; Dynamo itself says so in a log at most."""
    refused: tuple[str, ...] = ()
    """Frames that Dynamo gave up, with its reason."""
    breaks: tuple[str, ...] = ()
    """Reason of each graph break."""
    recompiles: tuple[str, ...] = ()
    """What was compiled after step 1, or again, with its step and Dynamo's reason."""
    seconds: float
    """Wall seconds in the compiler."""


class Closing(Record):
    """The last line of a rank that did all its work; written before teardown."""

    kind: Literal["closing"] = "closing"
    rank: int
    steps: int
    seconds: dict[str, float]
    """Wall seconds: import, build, train."""


class Failure(Record):
    """Why a rank raised."""

    rank: int
    pid: int
    at: float
    """Seconds since the epoch, to find the first of several."""
    type: str
    message: str
    traceback: str


Written = Header | Step | State | Captured | Communication | Compilation | Closing
Line = Annotated[Written, Field(discriminator="kind")]


def captures_folder(spec: RunSpec) -> Path:
    """Where the ranks of a launch put their files of tensors: beside its records."""
    return Path(spec.records).parent / "captures"


def rank_file(folder: Path, rank: int) -> Path:
    """Where rank ``rank`` writes its lines."""
    return folder / f"rank-{rank}.jsonl"


def failure_file(folder: Path, rank: int) -> Path:
    """Where rank ``rank`` says why it raised."""
    return folder / f"rank-{rank}.failure.json"
