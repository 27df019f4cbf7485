"""Which collectives a plan needs, at which numbers of processes and in which groups of ranks.

What a layout calls is measured: ``communication_calls`` in the verdicts of configs/cpu.yaml
(torchtitan 0.3.0, torch 2.14.1) are all_reduce for dp_replicate, all_gather and reduce_scatter
for dp_shard, all three for tp with the sequence split, all_gather and reduce_scatter for cp,
send and recv for pp. No plan has ep yet: its all_to_all is read in torchtitan's
models/common/token_dispatcher.py, and in spmd_types, whose form takes one tensor a rank. The
barrier is in torchtitan's distributed/utils.py (set_pg_timeouts), the objects in torch's
distributed/checkpoint/utils.py, by which every layout loads the seed; the loss is reduced as a
scalar in torchtitan's trainer.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from trn_validate.config import Plan
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.spec import COLLECTIVE, Collective, Degrees, Groups
from trn_validate.stage import Context
from trn_validate.verdict import Capability, Outcome

STAGE = "environment.collectives"

_BASIC: tuple[COLLECTIVE, ...] = (
    "broadcast",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
)
_TABLE = (
    Collective(kind="barrier"),
    Collective(kind="objects"),
    *(Collective(kind=kind) for kind in _BASIC),
    Collective(kind="all_reduce_max"),
    Collective(kind="all_gather_list"),
    Collective(kind="all_to_all_list"),
    *(Collective(kind=kind, dtype="bfloat16") for kind in _BASIC),
    *(Collective(kind=kind, dtype="int64") for kind in _BASIC),
    Collective(kind="all_reduce", form="scalar"),
    Collective(kind="all_reduce", dtype="int64", form="scalar"),
    Collective(kind="all_gather_list", form="scalar"),
    Collective(kind="broadcast", form="scalar"),
    *(Collective(kind=kind, form="strided") for kind in _BASIC),
    Collective(kind="all_to_all", form="uneven"),
    Collective(kind="all_to_all_list", form="uneven"),
    Collective(kind="all_reduce", form="large"),
)
"""What is asked at every number of processes, whether a rung needs it or not."""

_IN_GROUPS: tuple[COLLECTIVE, ...] = ("barrier", *_BASIC)

KNOWN_WRONG = frozenset(
    {("gloo", "all_reduce float32 strided"), ("gloo", "broadcast float32 strided")}
)
"""gloo takes the memory of a tensor with gaps as if it had none, and says nothing (measured with
torch 2.14.1). No rung communicates such a tensor, so that this alone fails no CPU."""


def sizes(plan: Plan) -> tuple[int, ...]:
    """Numbers of processes of the plan's rungs, each once; one process communicates with none."""
    return tuple(sorted({rung.degrees.world_size for rung in _rungs(plan)} - {1}))


def nodes_of(plan: Plan, world: int) -> int:
    """Nodes over which so many processes are probed: several, where a rung of that size crosses."""
    rungs = (rung for rung in _rungs(plan) if rung.degrees.world_size == world)
    return max((rung.nodes_in(plan) for rung in rungs), default=1)


def operations(plan: Plan, world: int) -> tuple[Collective, ...]:
    """What is tried with so many processes: the table, and what its rungs do in their groups."""
    asked = list(_TABLE)
    for rung in (r for r in _rungs(plan) if r.degrees.world_size == world):
        groups = {one.groups for one in needs(rung) if one.groups is not None}
        for group in sorted(groups, key=lambda one: (one.size, one.stride)):
            asked += [Collective(kind=kind, groups=group) for kind in _IN_GROUPS]
        asked += needs(rung)
    return tuple(dict.fromkeys(asked))


def needs(rung: ResolvedRung) -> tuple[Collective, ...]:
    """What a rung cannot do without; nothing for one process."""
    if rung.degrees.world_size == 1:
        return ()
    return tuple(dict.fromkeys(_needs(rung)))


def needed(plan: Plan, world: int) -> frozenset[str]:
    """Names of what may neither hang nor crash with so many processes.

    What any layout of a dense model needs, whether the plan has that layout or not, so that a rung
    that is added asks nothing anew; and what its own rungs with experts need.
    """
    rungs = (rung for rung in _rungs(plan) if rung.degrees.world_size == world)
    own = [one for rung in rungs if rung.degrees.ep > 1 for one in needs(rung)]
    return frozenset(map(str, (*own, *filter(_essential, operations(plan, world)))))


def _essential(operation: Collective) -> bool:
    if operation.kind in ("barrier", "objects"):
        return operation.groups is None
    if operation.form == "scalar":
        return operation.kind == "all_reduce"
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
    return operation.kind in kinds and operation.form == "plain" and operation.dtype != "int64"


def lacking(context: Context, rung: ResolvedRung) -> str | None:
    """Why a rung cannot run, as far as earlier stages found; None where nothing is in its way."""
    first = resolve(rung.ladder)[0]
    for other in dict.fromkeys((first, rung)):
        verdict = context.earlier.get(other.stage)
        if verdict is not None and verdict.outcome is Outcome.UNSUPPORTED:
            return f"{other.stage} is unsupported: {verdict.unsupported}"
    probed = context.earlier.get(STAGE)
    if probed is None:
        return None
    world = rung.degrees.world_size
    found = {one.operation: one for one in probed.capabilities if one.processes == world}
    absent = [found[name] for name in map(str, needs(rung)) if _absent(found.get(name))]
    if not absent:
        return None
    names = ", ".join(one.operation for one in absent)
    return f"{rung.degrees} needs {names} on {world} processes; refused: {absent[0].detail}"


def _absent(capability: Capability | None) -> bool:
    return capability is not None and capability.state == "refused"


def _needs(rung: ResolvedRung) -> Iterator[Collective]:
    degrees, workload = rung.degrees, rung.ladder.workload
    dtype = workload.compute_dtype
    yield Collective(kind="barrier")
    yield Collective(kind="objects")
    # Its count of tokens is asked as int64 and closes nothing: the vendor's fork of the trainer
    # cannot be read, and may count otherwise where the device reduces no whole numbers.
    yield Collective(kind="all_reduce", form="scalar")
    if degrees.dp_replicate > 1:
        yield Collective(kind="all_reduce", groups=_groups(degrees, "dp_replicate"))
    if degrees.dp_shard > 1:
        groups = _groups(degrees, "dp_shard")
        yield Collective(kind="all_gather", dtype=dtype, groups=groups)
        yield Collective(kind="reduce_scatter", groups=groups)
    if degrees.tp > 1:
        groups = _groups(degrees, "tp")
        kinds: tuple[COLLECTIVE, ...] = ("all_reduce",)
        kinds += ("all_gather", "reduce_scatter") if workload.sequence_parallel else ()
        yield from (Collective(kind=kind, dtype=dtype, groups=groups) for kind in kinds)
    if degrees.cp > 1:
        groups = _groups(degrees, "cp")
        yield Collective(kind="all_gather", dtype=dtype, groups=groups)
        yield Collective(kind="reduce_scatter", dtype=dtype, groups=groups)
    if degrees.pp > 1:
        groups = _groups(degrees, "pp")
        yield Collective(kind="send_recv", dtype=dtype, groups=groups)
        yield Collective(kind="all_reduce", groups=groups)
    if degrees.ep > 1:
        listed = workload.spmd_backend == "spmd_types"
        kind: COLLECTIVE = "all_to_all_list" if listed else "all_to_all"
        groups = _groups(degrees, "ep")
        yield Collective(kind=kind, dtype=dtype, form="uneven", groups=groups)


def _groups(degrees: Degrees, axis: str) -> Groups | None:
    """The ranks of a mesh axis; None where they are all ranks.

    The axes from the outermost are pp, dp_replicate, dp_shard, cp, tp; ep is the innermost of its
    own mesh (torchtitan 0.3.0, distributed/parallel_dims.py, build_mesh).
    """
    size: int = getattr(degrees, axis)
    inner = {"ep": 1, "tp": 1, "cp": degrees.tp, "dp_shard": degrees.cp * degrees.tp}
    inner["dp_replicate"] = inner["dp_shard"] * degrees.dp_shard
    inner["pp"] = inner["dp_replicate"] * degrees.dp_replicate
    return None if size == degrees.world_size else Groups(size=size, stride=inner[axis])


def _rungs(plan: Plan) -> list[ResolvedRung]:
    return [rung for ladder in plan.ladders for rung in resolve(ladder)]
