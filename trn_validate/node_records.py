"""What one rank on each node writes for environment.nodes; nothing here imports torch."""

from pathlib import Path

from trn_validate.base import Record


class Link(Record):
    """How fast two nodes talk to each other."""

    ranks: tuple[int, int]
    latency_seconds: float
    """Half of the shortest round trip of eight bytes."""
    bytes_per_second: float
    """Of the fastest of several large messages, there and back."""


class NodeProbe(Record):
    """What one node's rank measured, alone and with the others."""

    rank: int
    node: str
    pid: int
    device: str
    backend: str
    versions: dict[str, str]
    work_seconds: float
    """Shortest time of the same local work, which waits for nobody."""
    clock_seconds: float
    """How far its clock is ahead of that of rank 0."""
    clock_error_seconds: float
    """Half of the round trip in which that was measured."""
    links: tuple[Link, ...]
    """To the ranks after it."""


def node_file(folder: Path, rank: int) -> Path:
    """Where the rank that measures its node for environment.nodes writes."""
    return folder / f"node-of-rank-{rank}.json"
