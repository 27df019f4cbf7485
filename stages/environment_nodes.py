"""More than one node only: are they alike, do they see one folder, and do they reach each other?

First every node shows what it is, through the engine that joins them, and waits for the others'
facts in the run folder. Then one rank on each measures its own speed, its clock and every link.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from trn_validate.config import Plan
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.launch_neuron import equipped
from trn_validate.launchers import node_names
from trn_validate.launching import log_path
from trn_validate.node import POSITION
from trn_validate.node_checks import (
    fact_checks,
    fact_names,
    probe_checks,
    probe_facts,
    probe_names,
    read_probes,
)
from trn_validate.node_facts import NodeFacts, read_facts, read_seen
from trn_validate.stage import Context, Family, Findings, Place, Stage
from trn_validate.torchrun import rank_environment, torchrun
from trn_validate.verdict import Problem

FACTS, LINKS = "facts", "links"


@dataclass(frozen=True)
class _NodesStage:
    id: str = "environment.nodes"
    asks: str = "are the nodes alike, and do they reach each other?"

    def reads(self, plan: Plan) -> object:
        """The profile, how many nodes there are, and how far they may differ."""
        return {
            "profile": plan.profile.model_dump(),
            "nodes": plan.nodes,
            "node_limits": plan.node_limits.model_dump(),
        }

    def external(self, plan: Plan) -> dict[str, str]:
        """Nothing."""
        return {}

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """One process on each node that shows it, then one rank on each."""
        return (facts_request(place.plan, place.private), links_request(place.plan, place.private))

    def run(self, context: Context) -> Findings:
        """Hold the nodes against each other; only those that share a folder can be measured."""
        plan = context.plan
        nodes = context.observer.see("nodes", tuple[str, ...], lambda: node_names(plan))
        findings = Findings(expects=(*fact_names(plan), *probe_names()))
        request = facts_request(plan, context.attempt.private)
        result = _launch(context, request)
        facts = read_facts(_records(request))
        findings.checks += fact_checks(plan, nodes, facts, read_seen(_records(request)))
        findings.facts = _shown(facts)
        _blame(context, findings, result)
        if findings.problem is not None:
            return findings
        request = links_request(plan, context.attempt.private)
        device, private = plan.profile.device, context.run.private
        result = _launch(context, equipped(device, private, 1, request))
        probes = read_probes(_records(request), plan.nodes)
        findings.checks += probe_checks(plan, nodes, probes)
        findings.facts |= probe_facts(probes)
        for probe in probes:
            findings.device, findings.versions = probe.device, dict(probe.versions)
            context.pids.add(probe.pid)
        _blame(context, findings, result)
        return findings


def facts_request(plan: Plan, private: Path) -> LaunchRequest:
    """One process on each node that leaves its facts and looks for the others'."""
    folder = private / FACTS
    module = "trn_validate.node_facts"
    argv = (sys.executable, "-m", module, str(folder / "records"), str(plan.nodes), POSITION)
    return _request(plan, FACTS, argv, folder, {})


def links_request(plan: Plan, private: Path) -> LaunchRequest:
    """One rank on each node that measures it and its links."""
    folder, device = private / LINKS, plan.profile.device
    asked = ("--records", str(folder / "records"), "--device", device)
    backend = ("--backend", plan.profile.process_group)
    module = "trn_validate.workload.nodes"
    argv = torchrun(plan.nodes, folder, module, *asked, *backend, nodes=plan.nodes)
    env = {**rank_environment(device, 1), "OMP_NUM_THREADS": "1"}
    return _request(plan, LINKS, argv, folder, env)


def _request(
    plan: Plan, name: str, argv: tuple[str, ...], folder: Path, env: dict[str, str]
) -> LaunchRequest:
    return LaunchRequest(
        name=name,
        argv=argv,
        folder=folder,
        nodes=plan.nodes,
        env=env,
        wall_seconds=plan.timeouts.wall,
        silence_seconds=plan.timeouts.silence,
        grace_seconds=plan.timeouts.grace,
    )


def _records(request: LaunchRequest) -> Path:
    return request.folder / "records"


def _launch(context: Context, request: LaunchRequest) -> LaunchResult:
    context.say(f"launching {request.name} on {request.nodes} nodes")
    request.folder.mkdir(parents=True, exist_ok=True)
    result = context.launcher.launch(request)
    context.note(result)
    return result


def _shown(facts: dict[str, NodeFacts]) -> dict[str, str]:
    return {
        f"node {name}": f"EFA interfaces {one.efa}, {one.available_gib:.1f} GiB of memory free"
        for name, one in facts.items()
    }


def _blame(context: Context, findings: Findings, result: LaunchResult) -> None:
    """Say where to look: at the launch where it failed, else at the first check that says no."""
    failed = next((check for check in findings.checks if not check.passed), None)
    if result.cause.usable and failed is None:
        return
    what = result.what or result.cause.phrase
    findings.problem = Problem(
        cause="nodes" if result.cause.usable else result.cause.value,
        what=str(failed) if result.cause.usable else f"{result.name}: {what}",
        rank=result.rank,
        log=log_path(context, result),
        excerpt=result.excerpt,
    )


def _members(plan: Plan) -> tuple[Stage, ...]:
    return (_NodesStage(),) if plan.nodes > 1 else ()


FAMILY = Family("environment.nodes", _NodesStage.asks, _members)
