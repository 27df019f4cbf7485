"""One launch over nodes of a Slurm allocation: srun starts a supervisor on each of them.

Standard input is the line of life: srun hands its end on to every task, so that each node's
supervisor ends its share when the pipeline closes it or dies (``--input=all`` of srun(1), and seen
with Slurm 22.05).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trn_validate import node
from trn_validate.errors import Interrupted
from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.remains import last_words, one_line, tail
from trn_validate.shares import Share
from trn_validate.spec import STACKS
from trn_validate.starting import begin, ending_seconds, give_order, order_of, starting
from trn_validate.supervisor import FACTS, Facts, Order
from trn_validate.supervisor import STACKS as STACKS_FOLDER

SRUN_LOG = "srun.log"

FOLLOW_SECONDS = 15.0
"""How long the other nodes may go on after one has failed, so that they come to their own end."""

LINGER_SECONDS = 3.0
"""How far apart nodes may come to the same limit: each looks once a second."""

_NO_BINDING = "lacks support for cpu binding"
"""srun says so of ``--cpu-bind none`` where no binding is configured, which is as well."""

_SWEEP_SECONDS = 30.0
_POLL = 0.1


@dataclass(kw_only=True)
class Step:
    """One launch, as srun carries it out."""

    request: LaunchRequest
    nodes: tuple[str, ...]
    launch_id: str
    srun: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    swept: list[str] = field(default_factory=list)
    """What was found on nodes that left no facts."""
    found: dict[str, Share] = field(default_factory=dict)
    """Shares by node, each read once: they are asked for often, and lie on a network."""

    @property
    def ending_seconds(self) -> float:
        """Longest time in which the supervisors end their shares."""
        return ending_seconds(self.request) + LINGER_SECONDS

    def wait(self) -> None:
        """Wait until every node is done, or until those that follow a failed one had their time."""
        until = self.began + self.request.wall_seconds + self.ending_seconds
        failed_at: float | None = None
        while self.srun.poll() is None and (now := time.monotonic()) < until:
            if failed_at is None and self._any_failed():
                failed_at = now
            if failed_at is not None and now - failed_at > FOLLOW_SECONDS:
                return
            time.sleep(_POLL)

    def _any_failed(self) -> bool:
        done = self.shares()
        if len(done) == len(self.nodes):
            return False
        return any(share.facts.ended != "exited" or share.facts.exit_status for share in done)

    def ask_to_end(self) -> None:
        """Let every supervisor know that it has to end, and wait for none."""
        with contextlib.suppress(OSError):
            if self.srun.stdin is not None:
                self.srun.stdin.close()

    def end(self) -> None:
        """Ask every supervisor to end, wait for them, and sweep the nodes that left no facts."""
        self.ask_to_end()
        try:
            self.srun.wait(self.ending_seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt, Interrupted):
            self.srun.kill()
            self.srun.wait()
        for name in self.missing():
            launch_id = _launch_id(self.launch_id, self.nodes.index(name))
            self.swept.append(_sweep(name, launch_id))

    def shares(self) -> tuple[Share, ...]:
        """Shares of the nodes that left facts, in the order of the nodes."""
        for position, name in enumerate(self.nodes):
            if name in self.found:
                continue
            folder = _folder(self.request, position)
            with contextlib.suppress(OSError):
                facts = Facts(**json.loads((folder / FACTS).read_text(encoding="utf-8")))
                self.found[name] = Share(node=name, folder=folder, facts=facts)
        return tuple(self.found[name] for name in self.nodes if name in self.found)

    def missing(self) -> tuple[str, ...]:
        """Nodes that left no facts."""
        there = {share.node for share in self.shares()}
        return tuple(name for name in self.nodes if name not in there)

    def lost(self, missing: Sequence[str]) -> LaunchResult:
        """The answer where a node left no facts: whatever the others say, it is the cause."""
        log = self.request.folder / SRUN_LOG
        words = [w for w in last_words(tail(log)) if _NO_BINDING not in w]
        named = [line for line in words if missing[0] in line] or words
        # The first says why; srun's own account of what came of it follows.
        said = f": {named[0]}" if named else ""
        return LaunchResult(
            name=self.request.name,
            argv=self.request.argv,
            cause=Cause.NODE,
            exit_status=None,
            seconds=time.monotonic() - self.began,
            what=one_line(f"no answer from {', '.join(missing)}{said}; {'; '.join(self.swept)}"),
            node=missing[0],
            log=log,
            excerpt="\n".join(words),
        )


def start(nodes: tuple[str, ...], request: LaunchRequest, port: int | None) -> Step:
    """Write every node's order and let srun start its supervisor.

    Raises:
        FolderError: an earlier launch has used the folder.
        MeasurementError: it cannot be started.
    """
    launch_id = uuid.uuid4().hex
    with starting(request):
        for position in range(len(nodes)):
            order = _order(request, launch_id, position, port)
            give_order(request, _folder(request, position), order)
        argv = [*srun_argv(nodes), "-m", node.__name__, str(request.folder), *nodes]
        srun = begin(argv, request.folder / SRUN_LOG)
    return Step(request=request, nodes=nodes, launch_id=launch_id, srun=srun)


def _folder(request: LaunchRequest, position: int) -> Path:
    return node.share_folder(request.folder, position, request.nodes)


def _launch_id(launch_id: str, position: int) -> str:
    """A node's own, since Slurm may have several nodes on one machine, and each ends its own."""
    return f"{launch_id}-{position}"


def _order(request: LaunchRequest, launch_id: str, position: int, port: int | None) -> Order:
    words = {node.POSITION: str(position), node.IS_HOST: str(int(position == 0))}
    order = order_of(request, _launch_id(launch_id, position))
    argv = order.argv
    for word, value in words.items():
        argv = [one.replace(word, value) for one in argv]
    stacks = {STACKS: str(_folder(request, position) / STACKS_FOLDER)}
    return replace(
        order,
        argv=argv,
        env={**stacks, **order.env},
        linger_seconds=LINGER_SECONDS if request.nodes > 1 else 0.0,
        port=port,
    )


def srun_argv(nodes: Sequence[str]) -> list[str]:
    """One task on each of ``nodes`` with all that the allocation has there, up to Python's name.

    ``--overlap``: the batch step, or another launch, may hold what the step asks for.
    """
    count = str(len(nodes))
    return [
        *("srun", "--quiet", "--nodes", count, "--ntasks", count, "--ntasks-per-node", "1"),
        *("--nodelist", ",".join(nodes), "--overlap", "--mem", "0", "--cpu-bind", "none"),
        *("--export", "ALL", "--label", "--unbuffered", "--kill-on-bad-exit=0", "--wait=0"),
        sys.executable,
    ]


def _sweep(name: str, launch_id: str) -> str:
    """End what is left of a launch on a node, and say what came of it."""
    argv = [*srun_argv([name]), "-m", node.__name__, "--sweep", launch_id]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SWEEP_SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{name} cannot be reached, so what is alive there is not known"
    if done.returncode not in (0, node.LEFT):
        return f"{name} cannot be reached ({one_line(done.stderr) or 'no reason given'})"
    return done.stdout.strip().removeprefix("0: ")
