"""The arithmetic of ladders: what each rung is, and which rungs cannot hold.

A rung names an earlier rung and adds exactly one dimension to it. Tokens per step are
global_batch_size x seq_len in every rung; the local batch follows from the
data-parallel degree. Sources of the rules: torchtitan 0.3.0, trainer.py (batch and
sequence divisibility), distributed/context_parallel (blocks of 128 under cp),
models/qwen3/parallelize.py (tied weights under pp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trn_validate.config import LadderSection, Plan, Rung
from trn_validate.errors import ConfigError
from trn_validate.flavors import Shape
from trn_validate.spec import AXES, Degrees
from trn_validate.spreading import spread_problems

CP_BLOCK = 128
"""Block size that torch's context parallelism hard-codes for a block mask."""


@dataclass(frozen=True)
class ResolvedRung:
    """One rung with its degrees worked out."""

    ladder: LadderSection
    name: str
    extends: str | None
    adds: str | None
    """The axis that it adds; None for the first rung."""
    degrees: Degrees
    crosses: str | None = None
    """The axis along which nodes split it."""

    def nodes_in(self, plan: Plan) -> int:
        """Nodes that it runs on."""
        return plan.nodes if self.crosses is not None else 1

    @property
    def local_batch_size(self) -> int:
        """Samples of one data-parallel rank per step."""
        return self.ladder.workload.global_batch_size // self.degrees.data_parallel

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.ladder.workload.global_batch_size * self.ladder.workload.seq_len

    @property
    def stage(self) -> str:
        """Id of the stage that judges it."""
        return f"parallelism.{self.name}"


def resolve(ladder: LadderSection) -> tuple[ResolvedRung, ...]:
    """Work out the degrees of each rung, in the order of the plan.

    Raises:
        ValueError: a rung that names no earlier rung, or adds two dimensions or none.
    """
    done: dict[str, ResolvedRung] = {}
    for position, rung in enumerate(ladder.rungs):
        if rung.name in done:
            raise ValueError(f"rung {rung.name}: the name is taken by an earlier rung")
        own = {axis: value for axis in AXES if (value := getattr(rung, axis)) is not None}
        done[rung.name] = (
            _first(ladder, rung, own) if position == 0 else _next(ladder, rung, own, done)
        )
    return tuple(done.values())


def _first(ladder: LadderSection, rung: Rung, own: dict[str, int]) -> ResolvedRung:
    if rung.extends is not None:
        raise ValueError(f"rung {rung.name}: it is the first of its ladder, so it extends nothing")
    if len(_more_than_one(own)) > 1:
        raise ValueError(
            f"rung {rung.name}: the first rung may start with one dimension, not {_list(own)}"
        )
    return ResolvedRung(ladder, rung.name, None, None, Degrees(**own), rung.crosses)


def _next(
    ladder: LadderSection, rung: Rung, own: dict[str, int], done: dict[str, ResolvedRung]
) -> ResolvedRung:
    if rung.extends is None or rung.extends not in done:
        raise ValueError(
            f"rung {rung.name}: extends is {rung.extends!r}; it has to name an earlier rung: "
            f"{', '.join(done)}"
        )
    base = done[rung.extends].degrees
    changed = [axis for axis, value in own.items() if value != getattr(base, axis)]
    if len(changed) != 1:
        what = f"adds {_list(own)}" if changed else "adds no dimension"
        raise ValueError(
            f"rung {rung.name}: {what} to {rung.extends}; a rung adds exactly one, "
            "so that a difference has one cause"
        )
    axis = changed[0]
    if getattr(base, axis) != 1:
        raise ValueError(
            f"rung {rung.name}: changes {axis} from {getattr(base, axis)} to {own[axis]}; "
            "a rung adds a dimension and leaves those that are there"
        )
    degrees = base.model_copy(update={axis: own[axis]})
    return ResolvedRung(ladder, rung.name, rung.extends, axis, degrees, rung.crosses)


def _more_than_one(own: dict[str, int]) -> list[str]:
    return [axis for axis, value in own.items() if value > 1]


def _list(own: dict[str, int]) -> str:
    return " and ".join(f"{axis} {value}" for axis, value in own.items())


def _check_profile(plan: Plan) -> None:
    profile = plan.profile
    owed = ("instance_type", "devices", "logical_nc_config")
    missing = [name for name in owed if getattr(profile, name) is None]
    if profile.device == "neuron" and missing:
        raise ConfigError(
            f"profile.{missing[0]} is missing: a neuron plan says which machine there has to be",
            where=plan.source,
        )


def check_ladders(plan: Plan) -> None:
    """Refuse a plan with a rung that cannot hold.

    Raises:
        ConfigError: the rung, the rule and the numbers.
    """
    _check_profile(plan)
    names: dict[str, str] = {}
    for ladder in plan.ladders:
        where = f"{plan.source}: path {plan.path}, ladder {ladder.name}"
        try:
            plan.limits.of(ladder.workload.compute_dtype)
            shape = ladder.model.resolved()
            rungs = resolve(ladder)
        except ValueError as error:
            raise ConfigError(str(error), where=where, todo="See docs/plan.md.") from None
        for rung in rungs:
            if rung.name in names:
                raise ConfigError(
                    f"rung {rung.name}: ladder {names[rung.name]} has a rung of that name",
                    where=where,
                    todo="Names are unique in a plan, since they name the stages.",
                )
            names[rung.name] = ladder.name
            for problem in problems(plan, rung, shape):
                raise ConfigError(f"rung {rung.name}: {problem}", where=where)


def problems(plan: Plan, rung: ResolvedRung, shape: Shape) -> Iterator[str]:
    """Why a rung of a model of that shape cannot hold, each with its numbers."""
    yield from _capacity_problems(plan, rung)
    yield from spread_problems(rung.degrees, rung.crosses, rung.nodes_in(plan))
    yield from _shape_problems(rung, shape)
    yield from _sequence_problems(rung)
    yield from _pipeline_problems(rung, shape)
    yield from _attention_problems(plan, rung)


def _capacity_problems(plan: Plan, rung: ResolvedRung) -> Iterator[str]:
    world, nodes, cores = rung.degrees.world_size, rung.nodes_in(plan), plan.profile.cores
    if world > nodes * cores:
        over = f" on each of {nodes} nodes" if nodes > 1 else ""
        yield f"needs {world} processes ({rung.degrees}), but the profile has {cores} cores{over}"
    batch, dp = rung.ladder.workload.global_batch_size, rung.degrees.data_parallel
    if batch % dp:
        yield (
            f"global_batch_size {batch} is not divisible by the data-parallel degree {dp}, "
            "so tokens per step cannot stay what they are"
        )


def _shape_problems(rung: ResolvedRung, shape: Shape) -> Iterator[str]:
    tp, ep = rung.degrees.tp, rung.degrees.ep
    for name, count in (("heads", shape.heads), ("kv heads", shape.kv_heads)):
        if count % tp:
            yield f"the model's {count} {name} are not divisible by tp {tp}"
    if ep > 1:
        if shape.experts == 0:
            yield f"ep {ep}, but the model has no experts"
        elif shape.experts % ep:
            yield f"the model's {shape.experts} experts are not divisible by ep {ep}"
        ranks = rung.degrees.dp_shard * rung.degrees.cp * rung.degrees.tp
        if ranks % ep:
            yield f"ep {ep} does not divide dp_shard x cp x tp = {ranks}, over which it is laid"


def _sequence_problems(rung: ResolvedRung) -> Iterator[str]:
    seq_len, tp, cp = rung.ladder.workload.seq_len, rung.degrees.tp, rung.degrees.cp
    if seq_len % tp:
        yield f"seq_len {seq_len} is not divisible by tp {tp}"
    if cp > 1 and seq_len % (cp * CP_BLOCK):
        yield f"seq_len {seq_len} is not divisible by cp x {CP_BLOCK} = {cp * CP_BLOCK}"
    elif cp > 1 and seq_len % (2 * cp * tp):
        yield f"seq_len {seq_len} is not divisible by 2 x cp x tp = {2 * cp * tp}"


def _pipeline_problems(rung: ResolvedRung, shape: Shape) -> Iterator[str]:
    pp = rung.degrees.pp
    if pp == 1:
        return
    if pp > shape.layers:
        yield f"pp {pp} over {shape.layers} layers leaves a stage without one"
    if rung.local_batch_size < pp:
        yield f"{rung.local_batch_size} microbatches are fewer than the {pp} stages of pp"
    if shape.tied:
        yield f"pp {pp} with tied weights: the embedding and the head are on different stages"


def _attention_problems(plan: Plan, rung: ResolvedRung) -> Iterator[str]:
    attention = rung.ladder.workload.attention
    if attention == "causal" and rung.degrees.cp > 1:
        yield f"attention causal knows no cp, but the rung has cp {rung.degrees.cp}"
    if attention == "stock":
        reason = {
            "cpu": "FlexAttention has no backward on the CPU",
            "neuron": "FlexAttention is refused on a neuron device",
        }[plan.profile.device]
        yield f"attention stock: {reason}; take dense_mask or causal"
