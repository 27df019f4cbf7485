"""How a launch ended, named from what its supervisor, its ranks and its logs left.

The exit status and the records decide whether a launch is usable; texts only name the cause of a
failure. The rank that is named is the first that failed: one that it dragged along says so in its
own words, or was ended by torchrun.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.records import Failure
from trn_validate.remains import Remains, excerpt, last_words, one_line, tail
from trn_validate.shares import Share
from trn_validate.supervisor import LOG, OUTPUT, Facts

LIMITS: Mapping[str, tuple[Cause, str]] = {
    "wall": (Cause.TIMEOUT, "the wall limit of {0.wall_seconds:g} s was reached"),
    "silence": (Cause.HANG, "nothing was written for {0.silence_seconds:g} s"),
    "interrupted": (Cause.INTERRUPTED, "the pipeline was interrupted"),
    "orphaned": (Cause.INTERRUPTED, "the pipeline died"),
}
"""What ended a launch from without, and how to say it of the request."""

TEXTS: tuple[tuple[Cause, str], ...] = (
    (Cause.IMPORT, r"^(ModuleNotFoundError|ImportError)\b|cannot open shared object file"),
    (
        Cause.OUT_OF_MEMORY,
        r"MemoryError\b|[Oo]ut of memory|Allocation Failure|Failed to alloc DEVICE memory"
        r"|[Cc]an(not|'t) allocate memory",
    ),
    (Cause.NO_SPACE, r"No space left on device|Disk quota exceeded"),
    (
        Cause.PORT,
        r"Address already in use|EADDRINUSE|server socket has failed to listen"
        r"|client socket has (failed to connect|timed out)|RendezvousConnectionError",
    ),
    (
        Cause.HANG,
        r"Timed out waiting|Timed out after \d+ ?(ms|seconds)|wait timeout after|Socket Timeout"
        r"|collective operation timeout",
    ),
)
"""Texts that name a cause, in the order in which they are tried."""

CONFIGURATION_TYPES = frozenset(
    {"ValueError", "TypeError", "AssertionError", "NotImplementedError", "SystemExit"}
)
"""Refusals of a configuration while no step was taken; tyro and argparse raise SystemExit."""

OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Signals that nothing sends itself."""

_TORCHRUN_SIGNALLED = re.compile(r"Received \S+ death signal, shutting down workers")


class _Judgement(NamedTuple):
    cause: Cause
    what: str = ""
    rank: int | None = None


def classify(request: LaunchRequest, facts: Facts) -> LaunchResult:
    """Name how the launch ended that ``facts`` and the files of ``request`` tell of."""
    return classify_shares(request, [Share(node="", folder=request.folder, facts=facts)])


def classify_shares(request: LaunchRequest, shares: Sequence[Share]) -> LaunchResult:
    """The same of a launch in which several nodes had a share; names the node that failed first."""
    remains = Remains(request, shares)
    facts = remains.facts
    cause, what, rank = _judge(remains)
    share = remains.share(rank)
    node = share.node if share.node and cause is not Cause.COMPLETED else ""
    stacks = remains.stacks(rank) if facts.ended in ("wall", "silence") else None
    own = share.folder / (LOG if facts.ended == "lost" and cause is Cause.CRASH else OUTPUT)
    log = stacks or remains.stderr(rank) or (own if own.exists() else None)
    return LaunchResult(
        name=request.name,
        argv=request.argv,
        cause=cause,
        exit_status=facts.exit_status if facts.ended == "exited" else None,
        seconds=facts.seconds,
        what=one_line(f"on {node}: {what}" if node and rank is not None else what),
        rank=rank,
        node=node or None,
        log=log,
        excerpt="" if cause is Cause.COMPLETED or log is None else excerpt(log),
    )


def _judge(remains: Remains) -> _Judgement:
    facts, ranks = remains.facts, remains.request.ranks
    if facts.ended in LIMITS:
        return _limited(remains)
    if facts.ended == "lost":
        return _lost(facts.exit_status or 0)
    if facts.exit_status == 0 and remains.missing:
        count = f"{len(remains.missing)} of {ranks} ranks left no complete record"
        first = remains.first.rank if remains.first else remains.missing[0]
        why = f" ({remains.problem})" if remains.problem else f", rank {first} the first"
        return _Judgement(Cause.CRASH, f"the exit status is 0, but {count}{why}", first)
    if facts.exit_status == 0 and not remains.failures:
        outlived = f"processes that outlived the launch and were killed: {facts.leftovers}"
        return _Judgement(Cause.COMPLETED, outlived if facts.leftovers else "")
    if ranks and not remains.missing:
        rank = remains.first.rank if remains.first else None
        how = _reason(remains, rank) or _ended(facts.exit_status or 0)
        return _Judgement(Cause.TEARDOWN, f"after every rank had finished: {how}", rank)
    return _failed(remains)


def _limited(remains: Remains) -> _Judgement:
    cause, phrase = LIMITS[remains.facts.ended]
    what, rank = phrase.format(remains.request), None
    if remains.first is not None:
        rank = remains.first.rank
        what += f"; before that {_reason(remains, rank) or f'rank {rank} was gone'}"
    elif remains.request.ranks and not remains.missing:
        what += "; every rank had finished its work"
    elif cause is Cause.HANG and (rank := remains.behind()) is not None:
        what += f"; rank {rank} has the fewest steps"
    elif cause is Cause.HANG and (rank := remains.absent()) is not None:
        what += f"; all ranks but {rank} wait in a collective"
    return _Judgement(cause, what, rank)


def _lost(status: int) -> _Judgement:
    if status == errno.ENOSPC:
        return _Judgement(Cause.NO_SPACE, "no space was left for the supervisor to write its facts")
    cause = Cause.KILLED if status > 128 else Cause.CRASH
    return _Judgement(cause, f"the supervisor of the launch: {_ended(status)}")


def _failed(remains: Remains) -> _Judgement:
    """Name the cause where the exit status is not 0 and the records are not complete."""
    first, status = remains.first, remains.facts.exit_status or 0
    failure = remains.failures.get(first.rank) if first else None
    signalled = _TORCHRUN_SIGNALLED.search(remains.output)
    outside = status - 128 in OUTSIDE or (remains.request.ranks and signalled)
    if outside and (first is None or failure is None or first.dragged):
        how = signalled.group() if signalled else _ended(status)
        return _Judgement(Cause.KILLED, f"the launch was ended from outside: {how}")
    if first is None:
        return _by_log(remains.output, _ended(status))
    if failure is not None:
        return _Judgement(
            _by_failure(failure, remains), _reason(remains, first.rank) or "", first.rank
        )
    return _died(remains, first.rank)


def _by_failure(failure: Failure, remains: Remains) -> Cause:
    named = cause_of([f"{failure.type}: {failure.message}"])
    if named is not None:
        return named
    # What it was raised from may tell more, but an import that was tried first is often optional.
    heads = [line for line in failure.traceback.splitlines() if line and not line[0].isspace()]
    if (named := cause_of(heads)) not in (None, Cause.IMPORT):
        return named
    record = remains.records.get(failure.rank)
    started = remains.problem or (record is not None and record.taken)
    if failure.type in CONFIGURATION_TYPES and not started:
        return Cause.CONFIGURATION
    return Cause.CRASH


def _died(remains: Remains, rank: int) -> _Judgement:
    """Name the cause of a rank that is gone and left no failure."""
    code = remains.listed.get(rank)
    how = "left no closing line" if code is None else _ended(code if code >= 0 else 128 - code)
    if code is not None and -code in OUTSIDE:
        hint = "; the kernel does that when memory is short" if -code == signal.SIGKILL else ""
        return _Judgement(Cause.KILLED, f"rank {rank}: {how}, sent from outside{hint}", rank)
    log = remains.stderr(rank)
    return _by_log(tail(log) if log else "", f"rank {rank}: {how}")._replace(rank=rank)


def _by_log(text: str, how: str) -> _Judgement:
    words = last_words(text)
    last = f": {words[-1]}" if words else ""
    return _Judgement(cause_of(words) or Cause.CRASH, how + last)


def cause_of(lines: Iterable[str]) -> Cause | None:
    """First cause in the order of :data:`TEXTS` that any of ``lines`` names."""
    text = "\n".join(lines)
    return next((cause for cause, p in TEXTS if re.search(p, text, re.MULTILINE)), None)


def _reason(remains: Remains, rank: int | None) -> str | None:
    failure = remains.failures.get(rank) if rank is not None else None
    return None if failure is None else f"rank {rank}: {failure.type}: {failure.message}"


def _ended(status: int) -> str:
    """An exit status in words."""
    try:
        return f"ended by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"exit status {status}"
