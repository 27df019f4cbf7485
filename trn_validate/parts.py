"""The parts of a verdict: what ran, what was compared, what it rests on, and what went wrong."""

from typing import Annotated, Literal

from pydantic import Field

from trn_validate.base import Record, absent
from trn_validate.spec import Degrees

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Seat(Record):
    """Where one rank ran."""

    rank: int
    node: str
    core: str
    """Logical core of the device, or the CPUs that it might use."""
    peak_memory_bytes: int
    step_seconds: float
    """Median of its steps after the first."""


class Layout(Record):
    """What ran: model, processes and every degree, so that no two experiments look alike."""

    model: str
    processes: int
    degrees: Degrees
    global_batch_size: int
    seq_len: int
    tokens_per_step: int
    local_batch_size: int
    accumulation: int
    compute_dtype: str
    attention: str
    spmd_backend: str
    sequence_parallel: bool
    seats: Annotated[tuple[Seat, ...], Field(exclude_if=absent)] = ()
    """Node and core of each rank, where the plan has several nodes."""

    @property
    def nodes(self) -> int:
        """Machines that it ran on."""
        return len({seat.node for seat in self.seats}) or 1


class Command(Record):
    """One process tree that the stage started, and how it ended."""

    name: str
    argv: tuple[str, ...]
    exit_status: int | None
    """None where it was ended by a limit or never started."""
    seconds: float
    cause: str
    """``completed`` or the class of failure."""


class Artifact(Record):
    """A file that the verdict rests on; the path is relative to the run folder."""

    path: str
    sha256: Sha256
    bytes: int


class Thing(Record):
    """One side of a comparison."""

    name: str
    attempt: str
    """Folder of the run that produced it, relative to the run folder."""
    processes: tuple[str, ...]
    """Process id and start of each, in seconds since the epoch."""
    layout: str


class Compared(Record):
    """The two things that a comparison named; they have to differ."""

    reference: Thing
    candidate: Thing
    differ: Literal["layout", "implementation", "device", "processes"]
    """What besides the processes has to differ; ``processes`` for a rerun."""


class Capability(Record):
    """What a probe found of one operation at one number of processes."""

    operation: str
    processes: int
    state: Literal["right", "wrong", "refused", "hung", "crashed", "unasked"]
    """Only ``refused`` says that it is absent; ``unasked``: too much before it hung or crashed."""
    detail: str = ""
    """Names the rank, and what was found or the error."""
    seconds: float = 0.0
    """On the slowest rank."""


class Problem(Record):
    """Why a stage could not measure, or what to look at after a failed check."""

    cause: str
    what: str
    rank: int | None = None
    step: int | None = None
    log: str = ""
    """Path of the log to read, relative to the run folder."""
    excerpt: str = ""
    """Last lines of that log."""


class Host(Record):
    """What the host showed when the target was chosen: the facts behind ``evidence``."""

    root: str
    target: str
    reason: str
    trn2_functions: int
    """PCI functions with Trn2's vendor and device number."""
    job: Annotated[str | None, Field(exclude_if=absent)] = None
    """The engine's job in which the stage ran, and how often it was started again."""


class Execution(Record):
    """Proof that the accelerator computed: executions counted before and after."""

    distribution: str
    """Name and version of the package that executed, or empty."""
    before: int | None = None
    after: int | None = None
