"""What the verdict of a stage that trains depends on, of the plan and of what it names."""

from __future__ import annotations

from trn_validate.config import Plan
from trn_validate.ladder import ResolvedRung
from trn_validate.sources import module_sources


def rung_reads(plan: Plan, *rungs: ResolvedRung) -> object:
    """The part of the plan that decides what a launch of these rungs does and how it is judged.

    Time limits are not part of it: they change no number, and who raises one after a time-out
    must not lose what was measured before.
    """
    return {
        "profile": plan.profile.model_dump(),
        "limits": plan.limits.model_dump(),
        "rungs": [
            {
                # Said only where it is more than one, as it was before there could be more.
                **({"nodes": nodes} if (nodes := rung.nodes_in(plan)) > 1 else {}),
                "name": rung.name,
                "degrees": rung.degrees.model_dump(),
                "model": rung.ladder.model.model_dump(),
                "workload": rung.ladder.workload.model_dump(),
            }
            for rung in rungs
        ],
    }


def rung_external(rung: ResolvedRung) -> dict[str, str]:
    """Digests of what the rung's ladder names from outside the plan."""
    found = {rung.ladder.model.module: module_sources(rung.ladder.model.module)}
    data = rung.ladder.workload.data
    if data.path and data.sha256:
        found[data.path] = data.sha256
    return found
