"""The schema of a plan.

A plan is strict: an unknown key or a wrong type is refused. How a file becomes a plan is
in :mod:`trn_validate.plan`, the arithmetic of its ladders in :mod:`trn_validate.ladder`.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trn_validate.base import Record
from trn_validate.flavors import FLAVORS, Shape
from trn_validate.kernel_entry import Kernel
from trn_validate.limits import Limits
from trn_validate.spec import ATTENTION, DTYPE, RECOMPUTE, SPMD, DataChoice, ModelChoice

PathName = Literal["native", "transformers", "moe"]
_MOST = 2**31 - 1  # a larger seed would overflow torch's generators, a larger degree is a typo
_Positive = Annotated[int, Field(ge=1, le=_MOST)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]


class Profile(Record):
    """The machine that the target stands for."""

    device: Literal["cpu", "neuron"]
    instance_type: str | None = None
    devices: _Positive | None = None
    """Accelerator chips; none on the CPU."""
    cores: _Positive
    """Most processes that a rung may have: logical cores, or 4 on the CPU."""
    logical_nc_config: Literal[1, 2] | None = None
    memory_gib_per_core: _Amount
    """Memory of a logical core; on the CPU what one rank needs of the host's."""
    disk_gib: _Amount = 4.0
    """Free space that a run of this plan needs."""
    process_group: Literal["gloo", "neuron"]
    compile_backend: Literal["inductor", "neuron"]


class Model(Record):
    """Which model a ladder trains."""

    module: str
    flavor: str
    layers: _Positive | None = None
    tied: bool | None = None
    shape: Shape | None = None
    """Needed for a module that trn_validate/flavors.py does not know."""

    @property
    def choice(self) -> ModelChoice:
        """The part of it that the ranks are told."""
        return ModelChoice(
            module=self.module, flavor=self.flavor, layers=self.layers, tied=self.tied
        )

    def resolved(self) -> Shape:
        """Shape of the model as this plan changes it.

        Raises:
            ValueError: a flavour that is not in the table and states no shape, more layers
                than it has, or tied weights where it has untied ones.
        """
        shape = self.shape or FLAVORS.get(self.module, {}).get(self.flavor)
        if shape is None:
            known = FLAVORS.get(self.module)
            hint = f"known are: {', '.join(known)}" if known else "state its shape in the plan"
            raise ValueError(f"no flavor {self.flavor!r} in {self.module!r}; {hint}")
        if self.layers is not None and self.layers > shape.layers:
            raise ValueError(f"layers is {self.layers}, but {self.flavor!r} has {shape.layers}")
        if self.tied and not shape.tied:
            raise ValueError(
                f"tied is true, but {self.flavor!r} has untied weights; "
                "tying them makes another model"
            )
        changes: dict[str, object] = {}
        if self.layers is not None:
            changes["layers"] = self.layers
        if self.tied is not None:
            changes["tied"] = self.tied
        return shape.model_copy(update=changes)

    def __str__(self) -> str:
        cut = f", {self.layers} layers" if self.layers else ""
        tying = {True: ", tied", False: ", untied", None: ""}[self.tied]
        return f"{self.module} {self.flavor}{cut}{tying}"


class Workload(Record):
    """What every rung of a ladder trains, so that only the layout differs."""

    seq_len: _Positive
    global_batch_size: _Positive
    steps: Annotated[int, Field(ge=4, le=_MOST)]
    """At least 4: one to save after, and steps on both sides of a resume."""
    seed: Annotated[int, Field(ge=0, le=_MOST)] = 42
    compute_dtype: DTYPE = "float32"
    attention: ATTENTION
    activation_checkpointing: RECOMPUTE = "none"
    spmd_backend: SPMD = "spmd_types"
    sequence_parallel: bool = True
    learning_rate: _Amount = 8e-4
    warmup_steps: Annotated[int, Field(ge=0, le=_MOST)] = 2
    data: DataChoice = DataChoice()
    captures: Literal["full", "sketch"] = "full"
    """Compare gradients and parameters whole, or by random sketches of each."""

    @model_validator(mode="after")
    def _past_warmup(self) -> "Workload":
        # Communication is counted one step after the last, where a schedule that only warms up
        # divides by zero.
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} leaves none of the {self.steps} steps after it"
            )
        return self


class Rung(Record):
    """One layout: the first names its own degrees, each other adds one to an earlier rung."""

    name: _Name
    extends: str | None = None
    dp_replicate: _Positive | None = None
    dp_shard: _Positive | None = None
    tp: _Positive | None = None
    cp: _Positive | None = None
    pp: _Positive | None = None
    ep: _Positive | None = None
    crosses: Literal["dp_replicate", "dp_shard"] | None = None
    """The axis along which the plan's nodes split it; without one it runs on one node."""


class LadderSection(Record):
    """The rungs of one workload; the first is the reference of the others."""

    name: _Name
    nodes: _Positive | None = None
    """The ladder is for plans over so many nodes alone; without a number it is for all."""
    model: Model
    workload: Workload
    rungs: Annotated[tuple[Rung, ...], Field(min_length=1)]


class Timeouts(Record):
    """Bounds on every launch, in seconds."""

    wall: _Seconds
    silence: _Seconds
    """Longest time without a new line in a log or a record."""
    grace: _Seconds = 10.0
    """Between TERM and KILL."""
    init: _Positive = 300
    """torchtitan's collective time-out until the first step is done."""
    train: _Positive = 100
    """The same after the first step."""


class NodeLimits(Record):
    """How far nodes may differ from each other before a run over them is not worth its time."""

    clock_seconds: _Amount = 1.0
    """Failures of ranks are told apart by the times that their nodes give them."""
    slower: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1.5
    """How many times as long as the median node one may take for the same work."""
    slower_link: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 4.0
    """How many times as slow as the median pair of nodes one may be."""


class PathSection(Record):
    """One model path: its ladders, in the order in which they are climbed."""

    ladders: Annotated[tuple[LadderSection, ...], Field(min_length=1)]


class PlanFile(Record):
    """A whole file of configs/."""

    target: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    profile: Profile
    limits: Limits
    timeouts: Timeouts
    launcher: Literal["local", "slurm"] = "local"
    """What starts the launches: this machine, or the Slurm allocation that this process runs in."""
    nodes: _Positive = 1
    """Machines of the profile's kind; rungs that cross are spread evenly over all of them."""
    rendezvous_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Where nodes meet; without one it is a port that is free."""
    node_limits: NodeLimits = NodeLimits()
    """How far nodes may differ."""
    accept_unsupported: tuple[str, ...] = ()
    """Stages whose ``unsupported`` opens the gate."""
    kernels: str | None = None
    """File that lists the kernels; without it configs/kernels.yaml."""
    kernel_pairs: _Positive = 1
    """Runs with kernels that are timed, each beside one without; 1 times what is judged anyway."""
    paths: Annotated[dict[PathName, PathSection], Field(min_length=1)]


class Plan(Record):
    """The plan of one model path, checked: every rung in it can hold."""

    target: str
    path: PathName
    source: str
    """File that it was read from."""
    settings: tuple[str, ...]
    """``--set`` values on top of it."""
    profile: Profile
    limits: Limits
    timeouts: Timeouts
    launcher: Literal["local", "slurm"] = "local"
    nodes: int = 1
    rendezvous_port: int | None = None
    node_limits: NodeLimits = NodeLimits()
    accept_unsupported: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    kernel_pairs: int
    ladders: tuple[LadderSection, ...]
