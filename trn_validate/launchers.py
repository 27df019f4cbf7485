"""Which launcher a plan asks for."""

from __future__ import annotations

from trn_validate.config import Plan
from trn_validate.launch import Launcher
from trn_validate.launch_local import LocalLauncher


def launcher_of(plan: Plan) -> Launcher:
    """What starts the launches of a plan.

    Raises:
        UsageError: the plan asks for an allocation, and this process runs in none or in one with
            too few nodes.
    """
    if plan.launcher == "local":
        return LocalLauncher()
    from trn_validate.allocation import find_allocation
    from trn_validate.launch_slurm import SlurmLauncher

    allocation = find_allocation()
    allocation.take(plan.nodes)
    return SlurmLauncher(allocation, plan.rendezvous_port)


def node_names(plan: Plan) -> tuple[str, ...]:
    """Names of the nodes that a plan's launches run on, in their order; none without an engine.

    Raises:
        UsageError: as :func:`launcher_of`.
    """
    if plan.launcher == "local":
        return ()
    from trn_validate.allocation import find_allocation

    return find_allocation().take(plan.nodes)
