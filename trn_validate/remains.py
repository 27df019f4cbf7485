"""What a launch left behind: records, failures, stacks and logs, and who failed first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from trn_validate.errors import EvidenceError
from trn_validate.folding import read_ranks
from trn_validate.launch import LaunchRequest
from trn_validate.ranks import Rank
from trn_validate.records import Failure, failure_file
from trn_validate.shares import Share, together
from trn_validate.supervisor import OUTPUT, STACKS

SECONDARY = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection was likely closed|recvValue failed"
)
"""What a rank says when another one went away."""

_TORCHRUN_FAILED = re.compile(r"^ *rank *: (\d+) .*\n *exitcode *: (-?\d+) \(pid: (\d+)\)", re.M)
_TORCHRUN_ENDS = re.compile(r"Sending process (\d+) closing signal")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.M)
_SEARCHED = 256 * 1024
_LINES, _LINE = 20, 300


_WAITING = ("torch/distributed/_functional_collectives.py", "torch/distributed/distributed_c10d.py")
"""Where the main thread of a rank is while it waits for the others."""


class Suspect(NamedTuple):
    """A rank that failed; the least of several failed first."""

    dragged: bool
    """By another one: such a rank is the first only if there is no other."""
    at: float
    rank: int


class Remains:
    """All that is left of one launch."""

    def __init__(self, request: LaunchRequest, shares: Sequence[Share]) -> None:
        self.request = request
        self.shares = shares
        self.facts = together(shares)
        # torchrun was asked to end by us where its node did not end by itself.
        own = [share for share in shares if share.facts.ended == "exited"]
        self.output = "\n".join(tail(share.folder / OUTPUT) for share in own or shares)
        self.problem = ""
        """Why the records cannot be read, where they cannot."""
        self.records: Mapping[int, Rank] = {}
        self.failures: dict[int, Failure] = {}
        if request.records is not None:
            try:
                self.records = read_ranks(request.records, request.ranks).ranks
            except EvidenceError as error:
                self.problem = str(error)
            self.failures = read_failures(request.records, request.ranks)
        self.missing = [
            rank
            for rank in range(request.ranks)
            if rank not in self.records or not self.records[rank].complete
        ]
        """Ranks that did not come to their closing line."""
        closed = set(_TORCHRUN_ENDS.findall(self.output))
        self.listed = {
            int(rank): int(code)
            for rank, code, pid in _TORCHRUN_FAILED.findall(self.output)
            if pid not in closed
        }
        """Exit codes of the ranks that had failed before torchrun ended the others."""
        self.first = min(self._suspects(), default=None)

    def _suspects(self) -> list[Suspect]:
        gone = {int(rank): at for rank, at in self.facts.rank_gone.items()}
        found = []
        for rank in range(self.request.ranks):
            if (failure := self.failures.get(rank)) is not None:
                dragged = rank not in self.missing or bool(SECONDARY.search(failure.message))
                found.append(Suspect(dragged, failure.at, rank))
            elif rank in self.missing and (rank in gone or rank in self.listed):
                dragged = bool(self.listed) and rank not in self.listed
                found.append(Suspect(dragged, gone.get(rank, math.inf), rank))
        return found

    def behind(self) -> int | None:
        """The one rank that has fewer steps than all others, if there is such a rank."""
        steps = {r: self.records[r].taken if r in self.records else -1 for r in self.missing}
        least = [rank for rank, count in steps.items() if count == min(steps.values())]
        return least[0] if len(least) == 1 and self.request.ranks > 1 else None

    def absent(self) -> int | None:
        """The one rank that is in no collective while all others wait in one, by its stack."""
        pids, waiting = self._pids(), {}
        for rank in range(self.request.ranks):
            file = self.share(rank).folder / STACKS / f"{pids.get(rank)}.txt"
            waiting[rank] = any(place in excerpt(file) for place in _WAITING)
        elsewhere = [rank for rank, waits in waiting.items() if not waits]
        return elsewhere[0] if len(elsewhere) == 1 and self.request.ranks > 1 else None

    def _pids(self) -> dict[int, int]:
        pids = {r: record.header.pid for r, record in self.records.items()}
        return pids | {int(r): pid for r, pid in self.facts.rank_pids.items()}

    def stacks(self, rank: int | None) -> Path | None:
        """File with the stacks of ``rank``, or else of another rank that left some."""
        pids = self._pids()
        # Of ranks that are equal, one that has not finished is the one that hangs.
        order = sorted(pids, key=lambda r: (r != rank, r not in self.missing, r))
        by_rank = [self.share(r).folder / STACKS / f"{pids[r]}.txt" for r in order]
        files = by_rank or sorted(f for s in self.shares for f in s.folder.glob(f"{STACKS}/*.txt"))
        return next((file for file in files if _THREAD.search(tail(file))), None)

    def share(self, rank: int | None) -> Share:
        """The share of the node on which ``rank`` was seen, or else the first that failed."""
        mine = (share for share in self.shares if rank in share.ranks)
        failed = (share for share in self.shares if share.facts.exit_status)
        return next(mine, None) or next(failed, self.shares[0])

    def stderr(self, rank: int | None) -> Path | None:
        """Log of ``rank`` as torchrun redirects it, if anything is in it."""
        share = self.share(rank)
        # torchrun names it by the rank's place on its node; a node's ranks follow each other.
        place = rank if rank is None else rank % max(1, self.request.ranks // len(self.shares))
        files = sorted(share.folder.glob(f"ranks/*/attempt_*/{place}/stderr.log"))
        return files[-1] if files and files[-1].stat().st_size else None


def read_failures(folder: Path, world_size: int) -> dict[int, Failure]:
    """Failure of every rank that left a whole one, by rank."""
    found = {}
    for rank in range(world_size):
        try:
            text = failure_file(folder, rank).read_text(encoding="utf-8", errors="replace")
            found[rank] = Failure.model_validate_json(text)
        except (OSError, ValidationError):
            # One that was cut off by a kill says no more than that its rank failed.
            continue
    return found


def tail(path: Path) -> str:
    """The end of a log as text; empty where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _SEARCHED))
            raw = file.read(_SEARCHED)
    except OSError:
        return ""
    # Logs end up in terminals and reports, where a control character could do something.
    lines = _ESCAPE.sub("", raw.decode("utf-8", errors="replace")).splitlines()
    return "\n".join(_CONTROL.sub("?", line) for line in lines).rstrip()


def excerpt(path: Path) -> str:
    """Last lines of a log, or the top of the main thread's stack, which comes last."""
    text = tail(path)
    threads = list(_THREAD.finditer(text)) if path.parent.name == STACKS else []
    lines = text[threads[-1].start() :].splitlines()[:_LINES] if threads else []
    return "\n".join(line[:_LINE] for line in lines or text.splitlines()[-_LINES:])


def last_words(text: str) -> list[str]:
    """Lines of a log that may say why its process failed.

    After the last traceback's head these are the lines that are not part of a stack: source
    text in a stack names errors that did not happen.
    """
    lines = re.sub(r"^\[rank\d+\]: ?", "", text, flags=re.M).splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if not heads:
        return lines[-_LINES:]
    return [line for line in lines[heads[-1] + 1 :] if line and not line[0].isspace()]


def one_line(text: str) -> str:
    """``text`` as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LINE else line[: _LINE - 3] + "..."
