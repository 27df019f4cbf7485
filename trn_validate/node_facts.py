"""What one node shows of itself: ``python -m trn_validate.node_facts FOLDER NODES POSITION``.

Started once on each node, it leaves its facts in FOLDER and then waits until it sees those of the
others, which proves that all of them see the same folder. Its files carry its position and not its
name, since they are published. It imports no package that computes.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from trn_validate.base import Record
from trn_validate.fingerprint import PACKAGES, fingerprint
from trn_validate.memory import available_gib
from trn_validate.node_name import node_name
from trn_validate.paths import free_bytes, write_atomic
from trn_validate.target import host_root

SECONDS = 60.0
"""How long a file of another node may take to be seen (acdirmax of nfs(5))."""
_POLL = 0.1
_Kind = TypeVar("_Kind", bound=Record)
_TOPICS = {"os": "kernel", "kernel": "kernel", "python": "Python", "driver": "driver"}
_TOPICS |= {"lnc": "LNC", "devices": "devices", "host root": "devices"}

TOPICS = ("driver", "LNC", "devices", "kernel", "Python", "packages", "variables")
"""What nodes have to have in common, as the checks name it."""


class NodeFacts(Record):
    """What a node shows of itself."""

    node: str
    host: str
    fingerprint: dict[str, str]
    efa: int
    """Interfaces of the Elastic Fabric Adapter."""
    free_disk_bytes: int
    """Where the run folder is."""
    available_gib: float


class Seen(Record):
    """Whose facts a node saw."""

    node: str
    nodes: tuple[str, ...]


def topic(key: str) -> str:
    """Under which of :data:`TOPICS` an entry of a fingerprint is compared."""
    if key.startswith("$"):
        return "variables"
    known = key.removesuffix(" sources")
    return _TOPICS.get(key, "packages" if known in PACKAGES else "kernel")


def efa_interfaces(root: Path) -> int:
    """Adapters that the kernel's RDMA stack shows with the efa driver (sysfs, class infiniband)."""
    adapters = root / "sys" / "class" / "infiniband"
    try:
        names = os.listdir(adapters)  # noqa: PTH208
    except OSError:
        return 0
    drivers = (adapters / name / "device" / "driver" for name in names)
    return sum(driver.resolve().name == "efa" for driver in drivers)


def facts_now(folder: Path) -> NodeFacts:
    """The facts of this node."""
    root = host_root()
    return NodeFacts(
        node=node_name(),
        host=socket.gethostname(),
        fingerprint=fingerprint(root),
        efa=efa_interfaces(root),
        free_disk_bytes=free_bytes(folder),
        available_gib=available_gib(),
    )


def read_facts(folder: Path) -> dict[str, NodeFacts]:
    """Facts by node, of the nodes that left any."""
    read = (_read(NodeFacts, path) for path in sorted(folder.glob("facts-*.json")))
    return {facts.node: facts for facts in read if facts is not None}


def read_seen(folder: Path) -> dict[str, Seen]:
    """By node, whose facts it saw."""
    read = (_read(Seen, path) for path in sorted(folder.glob("seen-*.json")))
    return {seen.node: seen for seen in read if seen is not None}


def _read(kind: type[_Kind], path: Path) -> _Kind | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def differing(nodes: Mapping[str, NodeFacts], subject: str) -> dict[str, tuple[str, ...]]:
    """By node, how its entries of one topic differ from the first node's, with both values."""
    first, *others = nodes.values()
    found = {}
    for other in others:
        keys = sorted(first.fingerprint.keys() | other.fingerprint.keys())
        pairs = ((k, first.fingerprint.get(k), other.fingerprint.get(k)) for k in keys)
        lines = tuple(
            f"{key} {theirs} on {other.node}, {ours} on {first.node}"
            for key, ours, theirs in pairs
            if ours != theirs and topic(key) == subject
        )
        if lines:
            found[other.node] = lines
    return found


def main(folder: Path, nodes: int, position: str) -> None:
    """Leave this node's facts, and then whose facts it saw."""
    folder.mkdir(parents=True, exist_ok=True)
    own = facts_now(folder)
    write_atomic(folder / f"facts-{position}.json", own.model_dump_json(indent=2).encode())
    until = time.monotonic() + SECONDS
    while len(read_facts(folder)) < nodes and time.monotonic() < until:
        time.sleep(_POLL)
    seen = Seen(node=own.node, nodes=tuple(read_facts(folder)))
    write_atomic(folder / f"seen-{position}.json", seen.model_dump_json(indent=2).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
