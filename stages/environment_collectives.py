"""Do the collectives that the ladders need give right answers, at their numbers of processes?

First the vendor's own test, where there is a device; then our probe, whose answers are exact. What
an operation came to is in the verdict's table of capabilities. A rung that needs what is refused
is unsupported and says so before it runs; a wrong value fails this stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trn_validate.check import Check, none_found
from trn_validate.collectives import KNOWN_WRONG, STAGE, needed, nodes_of, operations, sizes
from trn_validate.config import Plan
from trn_validate.launch import LaunchRequest
from trn_validate.probing import Sweep, request_of, spec_of, sweep_all
from trn_validate.stage import Context, Family, Findings, Place, Stage
from trn_validate.verdict import Capability, Problem

_RANKS, _DEVICE, _BACKEND, _ANSWERED, _RIGHT, _WRONG, _STUCK = _PARTS = (
    "ranks with a process group",
    "device",
    "communication backend",
    "operations with an answer",
    "operations that are right",
    "operations with a wrong answer",
    "needed operations that hung or crashed",
)
_SHOWN = 4


@dataclass(frozen=True)
class _CollectivesStage:
    id: str = STAGE
    asks: str = "do the collectives that the ladders need give right answers?"

    def reads(self, plan: Plan) -> object:
        """Device, process group, and what is asked of how many processes."""
        asked = {str(w): [str(one) for one in operations(plan, w)] for w in sizes(plan)}
        need = {str(w): sorted(needed(plan, w)) for w in sizes(plan)}
        spread = {str(w): nodes for w in sizes(plan) if (nodes := nodes_of(plan, w)) > 1}
        return {
            "profile": plan.profile.model_dump(),
            "operations": asked,
            "needed": need,
            **({"nodes": spread} if spread else {}),
        }

    def external(self, plan: Plan) -> dict[str, str]:
        """Nothing."""
        return {}

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """The vendor's test, then one probe for each number of processes."""
        plan = place.plan
        probes = (
            request_of(plan, spec_of(plan, sweep, place.private), sweep.world, sweep.nodes)
            for sweep in _sweeps(plan)
        )
        return (*_vendor_requests(plan, place.private, Path("/")), *probes)

    def run(self, context: Context) -> Findings:
        """Ask the vendor's test, try every operation, and judge the answers."""
        plan = context.plan
        findings = Findings(expects=_expects(plan))
        _ask_vendor(context, findings)
        sweeps = _sweeps(plan)
        sweep_all(context, sweeps)
        for sweep in sweeps:
            findings.capabilities += sweep.found
            findings.checks += _checks(plan, sweep)
        header = sweeps[0].headers[0]
        findings.device, findings.versions = header.device, dict(header.versions)
        if failed := next((check for check in findings.checks if not check.passed), None):
            findings.problem = Problem(cause="collectives", what=str(failed))
        return findings


def _sweeps(plan: Plan) -> list[Sweep]:
    return [Sweep(w, operations(plan, w), nodes_of(plan, w)) for w in sizes(plan)]


def _vendor_requests(plan: Plan, private: Path, root: Path) -> tuple[LaunchRequest, ...]:
    """What the vendor's tool is asked; only for a device of the vendor's is it loaded."""
    if plan.profile.device != "neuron":
        return ()
    from trn_validate.neuron.nccom import requests

    # It is started without torchrun, so it knows the cores of one node alone.
    near = tuple(world for world in sizes(plan) if nodes_of(plan, world) == 1)
    return requests(root, private, near, plan.timeouts.wall, plan.timeouts.grace)


def _ask_vendor(context: Context, findings: Findings) -> None:
    root = Path(context.choice.signs.host_root)
    for request in _vendor_requests(context.plan, context.attempt.private, root):
        from trn_validate.neuron.nccom import is_there, judge

        result, there = None, partial(is_there, request)
        if context.observer.see(f"{request.name} is there", bool, there):
            context.say(f"launching {request.name}")
            result = context.launcher.launch(request)
            context.note(result)
        answer = judge(request, result)
        findings.checks.append(answer.check)
        findings.facts |= answer.facts
        findings.measures |= answer.measures


def _expects(plan: Plan) -> tuple[str, ...]:
    vendor = (request.name for request in _vendor_requests(plan, Path(), Path("/")))
    parts = (f"{world} ranks: {part}" for world in sizes(plan) for part in _PARTS)
    return (*vendor, *parts)


def _checks(plan: Plan, sweep: Sweep) -> list[Check]:
    """The checks of one number of processes."""
    asked = len(operations(plan, sweep.world))
    states: dict[str, list[Capability]] = {}
    for one in sweep.found:
        states.setdefault(one.state, []).append(one)
    unasked = states.get("unasked", [])
    need = needed(plan, sweep.world)
    stuck = [
        one
        for state in ("hung", "crashed", "unasked")
        for one in states.get(state, [])
        if one.operation in need
    ]
    backend = plan.profile.process_group
    wrong = [one for one in states.get("wrong", []) if (backend, one.operation) not in KNOWN_WRONG]

    def check(part: str, measured: int | str, comparator: str, limit: int | str) -> Check:
        return Check.model_validate(
            {
                "name": f"{sweep.world} ranks: {part}",
                "measured": measured,
                "comparator": comparator,
                "limit": limit,
                "source": "config" if part in (_DEVICE, _BACKEND) else "derived",
                "detail": _named(unasked) if part == _ANSWERED else "",
            }
        )

    return [
        check(_RANKS, len(sweep.headers), "==", sweep.world),
        check(_DEVICE, _one({h.device for h in sweep.headers.values()}), "==", plan.profile.device),
        check(_BACKEND, _one({h.backend for h in sweep.headers.values()}), "==", backend),
        check(_ANSWERED, len(sweep.found) - len(unasked), "==", asked),
        check(_RIGHT, len(states.get("right", [])), ">=", 1),
        none_found(f"{sweep.world} ranks: {_WRONG}", len(wrong), _named(wrong)),
        none_found(f"{sweep.world} ranks: {_STUCK}", len(stuck), _named(stuck)),
    ]


def _one(found: set[str]) -> str:
    return " and ".join(sorted(found)) or "none"


def _named(found: list[Capability]) -> str:
    shown = " | ".join(f"{one.operation} {one.state}: {one.detail}" for one in found[:_SHOWN])
    return shown + (f" | and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def members(plan: Plan) -> tuple[Stage, ...]:
    """One stage, where any rung has more than one process."""
    return (_CollectivesStage(),) if sizes(plan) else ()


FAMILY = Family(STAGE, _CollectivesStage.asks, members)
