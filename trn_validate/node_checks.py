"""Whether nodes are alike, see one folder, reach each other, and are equally fast."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from trn_validate.check import Check, none_found
from trn_validate.config import Plan
from trn_validate.node_facts import TOPICS, NodeFacts, Seen, differing
from trn_validate.node_records import Link, NodeProbe, node_file

ANSWERED, FOLDER, DISK = "nodes that answered", "nodes that see the run folder", "free disk"
ALIKE = tuple(f"nodes that differ in {topic}" for topic in (*TOPICS, "EFA interfaces"))
WITHOUT_EFA = "nodes without EFA"
MET, DEVICE, BACKEND = "nodes at the rendezvous", "device", "communication backend"
CLOCK, SLOWEST, PAIRS = "clock of any node", "slowest node", "pairs of nodes measured"
LATENCY, BANDWIDTH = "latency of the slowest link", "time of a large message on the slowest link"
_SHOWN = 3


def fact_names(plan: Plan) -> tuple[str, ...]:
    """Names of the checks that :func:`fact_checks` makes."""
    efa = (WITHOUT_EFA,) if plan.profile.device == "neuron" else ()
    return (ANSWERED, FOLDER, *ALIKE, *efa, DISK)


def probe_names() -> tuple[str, ...]:
    """Names of the checks that :func:`probe_checks` makes."""
    return (MET, DEVICE, BACKEND, CLOCK, SLOWEST, PAIRS, LATENCY, BANDWIDTH)


def fact_checks(
    plan: Plan, nodes: Sequence[str], facts: Mapping[str, NodeFacts], seen: Mapping[str, Seen]
) -> list[Check]:
    """What the nodes show of themselves, held against each other; ``nodes`` are all of them."""
    blind = [name for name in nodes if set(seen[name].nodes if name in seen else ()) < set(nodes)]
    checks = [
        _count(ANSWERED, len(facts), plan.nodes, [n for n in nodes if n not in facts]),
        _count(FOLDER, len(nodes) - len(blind), plan.nodes, blind),
    ]
    for name, subject in zip(ALIKE, TOPICS, strict=False):
        odd = differing(facts, subject) if facts else {}
        lines = [line for found in odd.values() for line in found]
        checks.append(none_found(name, len(odd), "; ".join(lines[:_SHOWN])))
    counts = {name: found.efa for name, found in facts.items()}
    usual = next(iter(counts.values()), 0)
    uneven = [f"{name} has {n}, not {usual}" for name, n in counts.items() if n != usual]
    checks.append(none_found(ALIKE[-1], len(uneven), "; ".join(uneven)))
    if plan.profile.device == "neuron":
        without = [name for name, count in counts.items() if count == 0]
        checks.append(none_found(WITHOUT_EFA, len(without), ", ".join(without)))
    return [*checks, _disk(plan, facts)]


def _count(name: str, measured: int, limit: int, lacking: Sequence[str]) -> Check:
    detail = f"not {', '.join(lacking)}" if lacking else ""
    return Check(
        name=name, measured=measured, comparator="==", limit=limit, source="config", detail=detail
    )


def _disk(plan: Plan, facts: Mapping[str, NodeFacts]) -> Check:
    least = min(facts.values(), key=lambda one: one.free_disk_bytes, default=None)
    return Check(
        name=DISK,
        measured=least.free_disk_bytes / 2**30 if least else 0.0,
        comparator=">=",
        limit=plan.profile.disk_gib,
        unit="GiB",
        source="config",
        detail=f"on {least.node}" if least else "",
    )


def read_probes(folder: Path, nodes: int) -> list[NodeProbe]:
    """What the ranks measured, as far as it is whole."""
    found = []
    for rank in range(nodes):
        try:
            text = node_file(folder, rank).read_text(encoding="utf-8")
            found.append(NodeProbe.model_validate_json(text))
        except (OSError, ValidationError):
            # A rank without a whole record is missing from the count, which is a check.
            continue
    return found


def probe_checks(plan: Plan, nodes: Sequence[str], probes: Sequence[NodeProbe]) -> list[Check]:
    """Clock, speed and links of the nodes, from what one rank on each measured."""
    there = {probe.node for probe in probes}
    return [
        _count(MET, len(there), plan.nodes, [name for name in nodes if name not in there]),
        _same(DEVICE, {probe.node: probe.device for probe in probes}, plan.profile.device),
        _same(BACKEND, {p.node: p.backend for p in probes}, plan.profile.process_group),
        _clock(plan, probes),
        _slowest(plan, probes),
        *_links(plan, probes),
    ]


def _same(name: str, found: Mapping[str, str], expected: str) -> Check:
    odd = [node for node, value in found.items() if value != expected]
    measured = found[odd[0]] if odd else (expected if found else "none")
    return Check(
        name=name,
        measured=measured,
        comparator="==",
        limit=expected,
        source="config",
        detail=f"on {odd[0]}" if odd else "",
    )


def _clock(plan: Plan, probes: Sequence[NodeProbe]) -> Check:
    worst = max(probes, key=lambda p: abs(p.clock_seconds), default=None)
    # A clock that is right within the error of asking is right.
    away = abs(worst.clock_seconds) - worst.clock_error_seconds if worst else float("inf")
    return Check(
        name=CLOCK,
        measured=max(0.0, away),
        comparator="<=",
        limit=plan.node_limits.clock_seconds,
        unit="s",
        source="config",
        detail=f"{worst.node} is {worst.clock_seconds:+.3f} s off rank 0's" if worst else "",
    )


def _slowest(plan: Plan, probes: Sequence[NodeProbe]) -> Check:
    worst = max(probes, key=lambda p: p.work_seconds, default=None)
    usual = _usual([p.work_seconds for p in probes])
    return Check(
        name=SLOWEST,
        measured=worst.work_seconds / usual if worst else float("inf"),
        comparator="<=",
        limit=plan.node_limits.slower,
        unit="x",
        source="config",
        detail=f"{worst.node}: {worst.work_seconds:.3f} s, median {usual:.3f} s" if worst else "",
    )


def _usual(seconds: Collection[float]) -> float:
    """The low median: of two nodes the faster one is what the other could be."""
    # Imported here, since status loads this stage and measures nothing.
    import statistics

    return statistics.median_low(seconds) if seconds else 1.0


def _links(plan: Plan, probes: Sequence[NodeProbe]) -> list[Check]:
    names = {probe.rank: probe.node for probe in probes}
    links = [link for probe in probes for link in probe.links]
    every = plan.nodes * (plan.nodes - 1) // 2

    def slowest(name: str, times: Mapping[Link, float]) -> Check:
        link = max(times, key=lambda one: times[one], default=None)
        usual = _usual(times.values())
        pair = " and ".join(names.get(rank, str(rank)) for rank in link.ranks) if link else ""
        return Check(
            name=name,
            measured=times[link] / usual if link else float("inf"),
            comparator="<=",
            limit=plan.node_limits.slower_link,
            unit="x",
            source="config",
            detail=f"between {pair}, {len(times)} pairs" if link else "",
        )

    return [
        _count(PAIRS, len({link.ranks for link in links}), every, []),
        slowest(LATENCY, {link: link.latency_seconds for link in links}),
        slowest(BANDWIDTH, {link: 1 / link.bytes_per_second for link in links}),
    ]


def probe_facts(probes: Sequence[NodeProbe]) -> dict[str, str]:
    """What each node measured, in words: facts, since their names are those of machines."""
    return {
        f"speed of {probe.node}": f"work {probe.work_seconds:.3f} s, clock "
        f"{probe.clock_seconds:+.6f} s (within {probe.clock_error_seconds:.6f} s)"
        + "".join(
            f"; to rank {link.ranks[1]} {link.latency_seconds * 1e6:.0f} us, "
            f"{link.bytes_per_second / 1e6:.0f} MB/s"
            for link in probe.links[:_SHOWN]
        )
        for probe in probes
    }
