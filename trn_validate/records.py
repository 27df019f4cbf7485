"""What the ranks of a launch write.

Each rank appends to ``rank-<r>.jsonl`` a :class:`Header`, its :class:`Step`, :class:`State` and
other lines, and, only if it got there, a :class:`Closing`. A rank that raises leaves a
:class:`Failure` in a file of its own. Nothing here imports torch, so that both sides read the
same types.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trn_validate.base import Real, Record
from trn_validate.spec import CAPTURE, Degrees


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
    started: float
    """When the process began, in seconds since the epoch."""
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
    node: str = ""
    """Name of its node, where it has company."""
    core: str = ""
    """Logical core of the device, or the CPUs that the process may use."""
    replaced: tuple[str, ...]
    """Torchtitan components that the workload put its own in place of."""
    hooks: tuple[str, ...]

    @property
    def process(self) -> str:
        """The process that wrote this: ids come again on a busy machine, and in every container."""
        return f"{self.pid} of {self.started:.2f}"


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


Moment = Literal["start", "gradient", "end"]
"""Parameters before step 1, gradients of step 1 before clipping, parameters at the end."""


class Captured(Record):
    """The tensors of this rank's pipeline stage at one moment, gathered whole.

    Every rank that shares a stage has gathered them itself, so equal digests say that the
    copies agree; the first of them writes the file.
    """

    kind: Literal["captured"] = "captured"
    what: Moment
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
    """Parameters that ask for a gradient and have none."""
    seconds: float


class Saved(Record):
    """What a checkpoint of this run says that it holds; the first rank reads its index."""

    kind: Literal["saved"] = "saved"
    step: int
    elements: dict[str, int]
    """Elements of each entry by its name; 0 for one that is no tensor."""


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


class Kernels(Record):
    """Which kernels this rank's model called, and how often."""

    kind: Literal["kernels"] = "kernels"
    provider: str
    """What executed them: device, simulator or interpreter."""
    reason: str
    """Why nothing better did."""
    replaced: dict[str, tuple[str, ...]]
    """By kernel, the modules that call it."""
    left: dict[str, tuple[str, ...]]
    """By kernel, the modules that could and do not."""
    launches: dict[str, int]
    """Launches that were carried out while it trained, by the name they are counted under."""
    traced: dict[str, int] = Field(default_factory=dict)
    """Times that one was traced into a graph instead."""


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


class ProbeHeader(Record):
    """What a rank of a probe found when its process group was there."""

    kind: Literal["probe"] = "probe"
    rank: int
    world_size: int
    pid: int
    started: float
    """When the process began, in seconds since the epoch."""
    device: str
    """Device type on which its tensors really are."""
    backend: str
    """Of the process group."""
    versions: dict[str, str]
    hooks: tuple[str, ...]


Phase = Literal["begun", "issued", "right", "wrong", "refused"]
"""``issued``: handed to the process group and not yet done; the last three end an operation."""


class Mark(Record):
    """How far a rank came with one operation; a probe writes one line at each phase."""

    kind: Literal["mark"] = "mark"
    operation: str
    phase: Phase
    what: str = ""
    """What was expected and found, or by which error it was refused."""
    seconds: float = 0.0


class ProbeClosing(Record):
    """The last line of a rank that tried every operation; written before teardown."""

    kind: Literal["probed"] = "probed"
    operations: int


ProbeLine = Annotated[ProbeHeader | Mark | ProbeClosing, Field(discriminator="kind")]

Written = Header | Step | State | Captured | Saved | Communication | Compilation | Kernels | Closing
Line = Annotated[Written, Field(discriminator="kind")]


def rank_file(folder: Path, rank: int) -> Path:
    """Where rank ``rank`` writes its lines."""
    return folder / f"rank-{rank}.jsonl"


def failure_file(folder: Path, rank: int) -> Path:
    """Where rank ``rank`` says why it raised."""
    return folder / f"rank-{rank}.failure.json"
