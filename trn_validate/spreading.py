"""How a plan is spread over nodes, and which spreads cannot hold.

torchrun gives a node ranks that follow each other, and torchtitan's mesh has its axes, from the
outermost, in the order pp, dp_replicate, dp_shard, cp, tp (0.3.0, distributed/parallel_dims.py,
build_mesh). So nodes split the outermost axis that is used, and whether no other crosses them is
arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trn_validate.config import LadderSection, Plan
from trn_validate.errors import ConfigError
from trn_validate.spec import Degrees


def of_nodes(ladders: Sequence[LadderSection], nodes: int) -> tuple[LadderSection, ...]:
    """The ladders that a plan over so many nodes climbs."""
    return tuple(ladder for ladder in ladders if ladder.nodes in (None, nodes))


def check_nodes(plan: Plan) -> None:
    """Refuse a plan whose nodes nothing starts, or that nothing uses.

    Raises:
        ConfigError: the launcher knows one machine, no ladder is left, or no rung crosses.
    """
    if not plan.ladders:
        raise ConfigError(f"no ladder is for a plan over {plan.nodes} nodes", where=plan.source)
    if plan.nodes == 1:
        return
    if plan.launcher == "local":
        raise ConfigError(
            f"nodes is {plan.nodes}, but launcher local knows this machine alone",
            where=plan.source,
            todo="Set launcher: slurm and run inside an allocation; see docs/slurm.md.",
        )
    if not any(rung.crosses for ladder in plan.ladders for rung in ladder.rungs):
        raise ConfigError(
            f"nodes is {plan.nodes}, but no rung crosses them, so nothing would run over them",
            where=f"{plan.source}: path {plan.path}",
            todo="Say crosses: dp_replicate or crosses: dp_shard in a rung; see docs/plan.md.",
        )


def spread_problems(degrees: Degrees, crosses: str | None, nodes: int) -> Iterator[str]:
    """What is in the way of spreading a layout evenly over nodes along one axis."""
    if crosses is None or nodes == 1:
        return
    degree: int = getattr(degrees, crosses)
    if degree % nodes:
        yield f"crosses {nodes} nodes along {crosses}, but {crosses} {degree} is not divisible"
    outer = {"pp": degrees.pp}
    if crosses == "dp_shard":
        outer["dp_replicate"] = degrees.dp_replicate
    for axis, outermost in outer.items():
        if outermost > 1:
            yield f"crosses nodes along {crosses}, but {axis} {outermost} is outside of it"
