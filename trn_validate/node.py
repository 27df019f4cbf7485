"""One node's part of a launch: it finds its order, agrees on the rendezvous, and supervises.

::

    python -m trn_validate.node FOLDER NAME...      this node's part; all nodes are named in order
    python -m trn_validate.node --sweep LAUNCH      end whatever of a launch is alive on this node

The engine that joins the nodes starts it once on each. It imports the standard library alone, like
the supervisor that it becomes. In the launch's folder: ``rendezvous.json``, written by the first
node for the others, and ``nodes/<position>/``, which is to one node what the whole folder is to a
launch on one machine. A launch on one node has no such folders.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import socket
import sys
import time
from pathlib import Path

from trn_validate import processes
from trn_validate.node_name import node_name
from trn_validate.supervisor import Order, read_order, supervise, write

NODES = "nodes"
RENDEZVOUS_FILE = "rendezvous.json"

RENDEZVOUS, POSITION, IS_HOST = "{rendezvous}", "{position}", "{is_host}"
"""Words of an argument vector: HOST:PORT of the rendezvous; the node's position; whether it is the
one that holds the rendezvous. The first is known to the nodes alone, when they are there."""

UNSEEN, ALONE, LEFT = 66, 67, 68
"""Exit statuses: no order is seen, no rendezvous was told, processes that do not end."""

_TOLD_SECONDS = 60.0
"""A network file system may show a new file only so much later (acdirmax of nfs(5))."""
_POLL = 0.1


def share_folder(folder: Path, position: int | str, nodes: int) -> Path:
    """Where the node at a position writes, in the folder of a launch over so many nodes."""
    return folder / NODES / str(position) if nodes > 1 else folder


def carry_out(folder: Path, names: list[str]) -> int:
    """Carry out this node's part of the launch in ``folder``; gives the exit status."""
    name = node_name()
    own = share_folder(folder, names.index(name), len(names))
    try:
        order = read_order(own)
    except OSError as error:
        print(f"{name} does not see {own} ({error.strerror})", file=sys.stderr)
        return UNSEEN
    if any(RENDEZVOUS in word for word in order.argv):
        endpoint = _tell(folder, order) if name == names[0] else _ask(folder)
        if endpoint is None:
            print(f"{name} was told no rendezvous by {names[0]}", file=sys.stderr)
            return ALONE
        argv = [word.replace(RENDEZVOUS, endpoint) for word in order.argv]
        order = dataclasses.replace(order, argv=argv)
    return supervise(own, order)


def _tell(folder: Path, order: Order) -> str:
    endpoint = f"{socket.gethostname()}:{order.port or _free_port()}"
    write(folder / RENDEZVOUS_FILE, {"endpoint": endpoint})
    return endpoint


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _ask(folder: Path) -> str | None:
    until = time.monotonic() + _TOLD_SECONDS
    while time.monotonic() < until:
        # Listed, since a network file system remembers for a while that a file was not there.
        if RENDEZVOUS_FILE in os.listdir(folder):  # noqa: PTH208
            told: str = json.loads((folder / RENDEZVOUS_FILE).read_text("utf-8"))["endpoint"]
            return told
        if select.select([0], [], [], _POLL)[0] and not os.read(0, 4096):
            return None
    return None


def sweep(launch: str) -> int:
    """End whatever of a launch is alive on this node; gives the exit status."""
    ended, left = processes.end(launch)
    print(f"{node_name()}: {ended} processes were ended, {len(left)} are alive: {left}")
    return LEFT if left else 0


if __name__ == "__main__":
    if sys.argv[1] == "--sweep":
        sys.exit(sweep(sys.argv[2]))
    sys.exit(carry_out(Path(sys.argv[1]), sys.argv[2:]))
