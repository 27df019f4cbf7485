"""Every check of environment.nodes, on nodes in order and with one seeded defect each."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ROOT
from trn_validate import plan
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.node_checks import (
    fact_checks,
    fact_names,
    probe_checks,
    probe_facts,
    probe_names,
    read_probes,
)
from trn_validate.node_facts import (
    NodeFacts,
    Seen,
    efa_interfaces,
    main,
    read_facts,
    read_seen,
    topic,
)
from trn_validate.node_records import Link, NodeProbe, node_file

LARGE = ROOT / "configs" / "trn2.48xlarge.yaml"
NAMES = ("trna", "trnb", "trnc")
FINGERPRINT = {
    "os": "ubuntu 24.04",
    "kernel": "Linux 6.8",
    "python": "CPython 3.12.3",
    "host root": "/",
    "driver": "2.24",
    "lnc": "2",
    "devices": "16",
    "torch": "2.14.1",
    "torchtitan sources": "ab",
    "$NEURON_CC_FLAGS": "-O1",
}


def loaded() -> Plan:
    found = plan.load(LARGE, settings=("launcher=slurm", "nodes=2"))
    return found.model_copy(update={"nodes": len(NAMES)})


def facts(node: str, **changes: Any) -> NodeFacts:
    values: dict[str, Any] = {
        "node": node,
        "host": node,
        "fingerprint": FINGERPRINT,
        "efa": 16,
        "free_disk_bytes": 500 * 2**30,
        "available_gib": 1900.0,
    }
    return NodeFacts(**(values | changes))


def probe(rank: int, **changes: Any) -> NodeProbe:
    later = range(rank + 1, len(NAMES))
    links = (Link(ranks=(rank, r), latency_seconds=2e-5, bytes_per_second=1e10) for r in later)
    values: dict[str, Any] = {
        "rank": rank,
        "node": NAMES[rank],
        "pid": 100 + rank,
        "device": "neuron",
        "backend": "neuron",
        "versions": {},
        "work_seconds": 0.1,
        "clock_seconds": 0.0,
        "clock_error_seconds": 1e-5,
        "links": tuple(links),
    }
    return NodeProbe(**(values | changes))


def judged(
    changed: NodeFacts | None = None, seen: tuple[str, ...] = NAMES, without: str = ""
) -> dict[str, Check]:
    every = {name: facts(name) for name in NAMES}
    if changed is not None:
        every[changed.node] = changed
    every.pop(without, None)
    saw = {name: Seen(node=name, nodes=NAMES) for name in NAMES}
    saw["trnb"] = Seen(node="trnb", nodes=seen)
    return {check.name: check for check in fact_checks(loaded(), NAMES, every, saw)}


def measured(*changed: NodeProbe, left: int = len(NAMES)) -> dict[str, Check]:
    every = {rank: probe(rank) for rank in range(left)} | {one.rank: one for one in changed}
    return {check.name: check for check in probe_checks(loaded(), NAMES, list(every.values()))}


def refused(checks: dict[str, Check]) -> list[str]:
    return [name for name, check in checks.items() if not check.passed]


def test_nodes_in_order_pass_every_check_that_is_owed() -> None:
    assert tuple(judged()) == fact_names(loaded())
    assert tuple(measured()) == probe_names()
    assert refused(judged()) == refused(measured()) == []


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("driver", "2.25", "driver"),
        ("lnc", "1", "LNC"),
        ("devices", "15", "devices"),
        ("kernel", "Linux 6.9", "kernel"),
        ("python", "CPython 3.12.4", "Python"),
        ("torch", "2.14.0", "packages"),
        ("torchtitan sources", "cd", "packages"),
        ("$NEURON_CC_FLAGS", "-O2", "variables"),
    ],
)
def test_a_node_that_differs_is_named_with_both_values(key: str, value: str, name: str) -> None:
    checks = judged(facts("trnb", fingerprint=FINGERPRINT | {key: value}))
    assert refused(checks) == [f"nodes that differ in {name}"]
    check = checks[f"nodes that differ in {name}"]
    assert check.detail == f"{key} {value} on trnb, {FINGERPRINT[key]} on trna"


@pytest.mark.parametrize(
    ("defect", "names", "detail"),
    [
        (lambda: judged(without="trnc"), ["nodes that answered"], "not trnc"),
        (lambda: judged(seen=("trnb",)), ["nodes that see the run folder"], "not trnb"),
        (
            lambda: judged(facts("trnb", efa=1)),
            ["nodes that differ in EFA interfaces"],
            "trnb has 1, not 16",
        ),
        (
            lambda: judged(facts("trnb", efa=0)),
            ["nodes that differ in EFA interfaces", "nodes without EFA"],
            "trnb has 0, not 16",
        ),
        (lambda: judged(facts("trnb", free_disk_bytes=2**30)), ["free disk"], "on trnb"),
        (
            lambda: measured(probe(1, device="cpu")),
            ["device"],
            "on trnb",
        ),
        (lambda: measured(probe(1, backend="gloo")), ["communication backend"], "on trnb"),
        (
            lambda: measured(probe(2, clock_seconds=-3.0)),
            ["clock of any node"],
            "trnc is -3.000 s off rank 0's",
        ),
        (
            lambda: measured(probe(1, work_seconds=0.2)),
            ["slowest node"],
            "trnb: 0.200 s, median 0.100 s",
        ),
        (lambda: measured(probe(1, links=())), ["pairs of nodes measured"], ""),
        (
            lambda: measured(
                probe(1, links=(Link(ranks=(1, 2), latency_seconds=1e-3, bytes_per_second=1e10),))
            ),
            ["latency of the slowest link"],
            "between trnb and trnc, 3 pairs",
        ),
        (
            lambda: measured(
                probe(1, links=(Link(ranks=(1, 2), latency_seconds=2e-5, bytes_per_second=1e9),))
            ),
            ["time of a large message on the slowest link"],
            "between trnb and trnc, 3 pairs",
        ),
        (
            lambda: measured(left=2),
            ["nodes at the rendezvous"],
            "not trnc",
        ),
    ],
)
def test_a_seeded_defect_fails_its_check_and_no_other(
    defect: Callable[[], dict[str, Check]], names: list[str], detail: str
) -> None:
    checks = defect()
    assert refused(checks) == names
    assert checks[names[0]].detail == detail


def test_a_clock_that_is_right_within_the_error_of_asking_is_right() -> None:
    assert refused(measured(probe(2, clock_seconds=3.0, clock_error_seconds=2.5))) == []


def test_without_any_node_nothing_passes_that_measures() -> None:
    checks = {check.name: check for check in probe_checks(loaded(), NAMES, [])}
    assert refused(checks) == list(probe_names())
    assert {check.name: check.passed for check in fact_checks(loaded(), NAMES, {}, {})}[
        "nodes that answered"
    ] is False


def test_a_time_that_is_no_number_fails() -> None:
    assert "slowest node" in refused(measured(probe(0, work_seconds=math.inf)))


def test_what_the_nodes_measured_is_told_in_words() -> None:
    told = probe_facts([probe(0), probe(1)])
    assert set(told) == {"speed of trna", "speed of trnb"}
    assert "to rank 1 20 us, 10000 MB/s" in told["speed of trna"]


def test_a_record_that_was_cut_off_is_no_record(tmp_path: Path) -> None:
    node_file(tmp_path, 0).write_text(probe(0).model_dump_json())
    node_file(tmp_path, 1).write_text(probe(1).model_dump_json()[:40])
    assert [one.rank for one in read_probes(tmp_path, 3)] == [0]


def test_a_node_leaves_its_facts_and_whom_it_saw(tmp_path: Path) -> None:
    other = facts("other")
    (tmp_path / "facts-1.json").write_text(other.model_dump_json())
    main(tmp_path, 2, "0")
    found = read_facts(tmp_path)
    assert len(found) == 2
    assert found["other"] == other
    (seen,) = read_seen(tmp_path).values()
    assert set(seen.nodes) == set(found)


def test_every_entry_of_a_fingerprint_belongs_to_a_topic() -> None:
    assert {topic(key) for key in FINGERPRINT} == {
        *("kernel", "Python", "devices", "driver", "LNC", "packages", "variables")
    }


def test_only_interfaces_with_the_driver_of_the_adapter_count(tmp_path: Path) -> None:
    for name, driver in (("rdmap0s1", "efa"), ("mlx5_0", "mlx5_core")):
        device = tmp_path / "sys" / "class" / "infiniband" / name / "device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "drivers" / driver)
    assert efa_interfaces(tmp_path) == 1
    assert efa_interfaces(tmp_path / "nothing") == 0
