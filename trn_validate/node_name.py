"""How a node is called; the standard library alone, since ranks and supervisors ask it."""

from __future__ import annotations

import os
import socket

VARIABLE = "SLURMD_NODENAME"
"""Variable by which Slurm tells a task on which of its nodes it is: several may share a machine."""


def node_name() -> str:
    """How the engine calls this node; the host's own name where there is no engine."""
    return os.environ.get(VARIABLE) or socket.gethostname()
