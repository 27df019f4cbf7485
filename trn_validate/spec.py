"""What the ranks of one launch are told.

The pipeline writes one :class:`RunSpec` per launch. Nothing here imports torch, so that both
sides read the same types.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trn_validate.base import Record

ATTENTION = Literal["dense_mask", "causal", "stock"]
DTYPE = Literal["float32", "bfloat16"]
SPMD = Literal["spmd_types", "partial_dtensor"]
RECOMPUTE = Literal["none", "selective", "full"]
CAPTURE = Literal["none", "full", "sketch"]
COLLECTIVE = Literal[
    "barrier",
    "broadcast",
    "all_reduce",
    "all_reduce_max",
    "all_gather",
    "all_gather_list",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_list",
    "send_recv",
    "objects",
]
"""Kinds of communication that a probe knows; ``list`` is the form that takes one tensor a rank."""

STACKS = "TRN_VALIDATE_STACKS"
"""Variable with the folder for stacks, where that of the spec is shared by several nodes."""

AXES = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")
"""Mesh axes in torchtitan's names; every one of them is a degree, 1 when unused."""


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


class KernelUse(Record):
    """A kernel in a model: what puts it in, and how to tell that it is called."""

    name: str
    override: str
    """Import path of torchtitan's override."""
    replaces: str
    """``module:class`` whose instances could call the kernel."""
    by: str
    """``module:class`` of those that do, a subclass of it."""
    launches: dict[str, int]
    """Launches of one forward and backward of one module, by the name they are counted under."""


def _alone(nodes: int) -> bool:
    """Whether a launch knows this machine alone, whose spec says nothing of nodes."""
    return nodes == 1


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
    nodes: Annotated[int, Field(ge=1, exclude_if=_alone)] = 1
    """Nodes over which the ranks are spread evenly."""
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
    kernels: tuple[KernelUse, ...] = ()
    """Kernels that are put into the model."""
    overrides: tuple[str, ...] = ()
    """Import paths of torchtitan overrides that put in no kernel."""
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


class Groups(Record):
    """Ranks in groups of ``size``, each group's ranks ``stride`` apart, as a mesh axis has them."""

    size: Annotated[int, Field(ge=2)]
    stride: Annotated[int, Field(ge=1)]

    def __str__(self) -> str:
        return f"groups of {self.size}, {self.stride} apart"


class Collective(Record):
    """One operation that a probe tries."""

    kind: COLLECTIVE
    dtype: Literal["float32", "bfloat16", "int64"] = "float32"
    form: Literal["plain", "scalar", "strided", "uneven", "large"] = "plain"
    """A short vector, a 0-d tensor, one with gaps, parts of different sizes, or 2**18 elements."""
    groups: Groups | None = None
    """The groups that it runs in, all at once; None is one group of all ranks."""

    @property
    def name(self) -> str:
        """Name of the operation in a capability table, without its group."""
        parts: list[str] = [self.kind]
        parts += [] if self.kind in ("barrier", "objects") else [self.dtype]
        return " ".join(parts if self.form == "plain" else [*parts, self.form])

    def __str__(self) -> str:
        return self.name if self.groups is None else f"{self.name} in {self.groups}"


class CollectivesSpec(Record):
    """All that the ranks of a probe of collectives are told."""

    name: str
    records: str
    stacks: str
    device: Literal["cpu", "neuron"]
    backend: str
    """Of the process group."""
    operations: tuple[Collective, ...]
    seconds: float
    """Time limit of one operation."""
    hooks: tuple[str, ...] = ()
    """Import paths ``module:function`` that spoil what communicates; tests alone set them."""


def checkpoints_folder(spec: RunSpec) -> Path:
    """Where torchtitan puts the checkpoints of a launch, one folder ``step-<n>`` each."""
    return Path(spec.dump) / "checkpoint"


def captures_folder(spec: RunSpec) -> Path:
    """Where the ranks of a launch put their files of tensors: beside its records."""
    return Path(spec.records).parent / "captures"
