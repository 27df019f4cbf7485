"""Launching a probe of collectives, and putting together what its ranks wrote.

An operation that hangs or crashes takes its launch with it, but only that operation is lost: the
probe is launched again for what comes after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trn_validate.config import Plan
from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.launch_neuron import equipped
from trn_validate.launching import log_path
from trn_validate.paths import make_folder, write_atomic
from trn_validate.records import Mark, ProbeClosing, ProbeHeader, ProbeLine, rank_file
from trn_validate.remains import SECONDARY, read_failures
from trn_validate.spec import Collective, CollectivesSpec
from trn_validate.stage import Context, Unmeasured
from trn_validate.torchrun import rank_environment, torchrun
from trn_validate.verdict import Capability, Problem

MODULE = "trn_validate.workload.collectives"
MOST_STUCK = 3
"""Operations that may hang or crash before the rest is not asked: each costs its time limit."""

_LINE: TypeAdapter[ProbeHeader | Mark | ProbeClosing] = TypeAdapter(
    ProbeLine, config=ConfigDict(defer_build=True)
)
_ENDS = ("right", "wrong", "refused")


@dataclass
class Tried:
    """What the ranks of one launch wrote."""

    headers: dict[int, ProbeHeader] = field(default_factory=dict)
    marks: dict[int, dict[str, Mark]] = field(default_factory=dict)
    """By rank, the last phase of each operation that it began."""
    closed: set[int] = field(default_factory=set)
    timed_out: set[int] = field(default_factory=set)
    """Ranks that ended themselves at the time limit of an operation."""


@dataclass
class Sweep:
    """All operations at one number of processes, over as many launches as they take."""

    world: int
    left: tuple[Collective, ...]
    nodes: int = 1
    headers: dict[int, ProbeHeader] = field(default_factory=dict)
    found: list[Capability] = field(default_factory=list)
    launches: int = 0
    stuck: int = 0

    @property
    def name(self) -> str:
        """Name of the next launch."""
        return f"ranks-{self.world}" + (f"-again-{self.launches}" if self.launches else "")


def spec_of(plan: Plan, sweep: Sweep, private: Path) -> CollectivesSpec:
    """What the ranks of the next launch are told."""
    folder = private / sweep.name
    return CollectivesSpec(
        name=sweep.name,
        records=str(folder / "records"),
        stacks=str(folder / "stacks"),
        device=plan.profile.device,
        backend=plan.profile.process_group,
        operations=sweep.left,
        # As long as the trainer itself would wait for a collective after its first step.
        seconds=float(plan.timeouts.train),
    )


def request_of(plan: Plan, spec: CollectivesSpec, world: int, nodes: int = 1) -> LaunchRequest:
    """The launch that carries out ``spec``; its records are those of no trainer."""
    folder = Path(spec.records).parent
    return LaunchRequest(
        name=spec.name,
        argv=torchrun(world, folder, MODULE, "--spec", str(folder / "spec.json"), nodes=nodes),
        folder=folder,
        nodes=nodes,
        env=rank_environment(spec.device, world // nodes),
        wall_seconds=plan.timeouts.wall,
        silence_seconds=plan.timeouts.silence,
        grace_seconds=plan.timeouts.grace,
    )


def sweep_all(context: Context, sweeps: list[Sweep]) -> None:
    """Try every operation of every sweep.

    Side by side on the CPU, since starting is most of it; one at a time where there are cores to
    be fought over.

    Raises:
        Unmeasured: the ranks of a first launch never had a process group.
    """
    plan = context.plan
    while open_ := [sweep for sweep in sweeps if sweep.left]:
        some = open_ if plan.profile.device == "cpu" else open_[:1]
        specs = [spec_of(plan, sweep, context.attempt.private) for sweep in some]
        for spec in specs:
            folder = Path(spec.records).parent
            make_folder(folder)
            write_atomic(folder / "spec.json", (spec.model_dump_json(indent=2) + "\n").encode())
        requests = tuple(
            equipped(
                spec.device,
                context.run.private,
                sweep.world // sweep.nodes,
                request_of(plan, spec, sweep.world, sweep.nodes),
            )
            for spec, sweep in zip(specs, some, strict=True)
        )
        context.say(f"launching {', '.join(spec.name for spec in specs)}")
        results = context.launcher.together(requests)
        tried = [
            read_tried(Path(s.records), sweep.world) for s, sweep in zip(specs, some, strict=True)
        ]
        ended = [_teardown(*pair) for pair in zip(results, tried, strict=True)]
        # All at once, since they ran side by side.
        context.note(*ended)
        for sweep, spec, one, result in zip(some, specs, tried, ended, strict=True):
            _take(context, sweep, Path(spec.records), one, result)


def _teardown(result: LaunchResult, tried: Tried) -> LaunchResult:
    """The result, where every rank had all answers before the process group crashed."""
    if result.cause.usable or not tried.closed or tried.closed != set(tried.headers):
        return result
    return dataclasses.replace(result, cause=Cause.TEARDOWN)


def _take(
    context: Context, sweep: Sweep, records: Path, tried: Tried, result: LaunchResult
) -> None:
    """Add what a launch came to, and leave what it did not come to."""
    sweep.launches += 1
    for header in tried.headers.values():
        context.hooks.update(header.hooks)
        context.pids.add(header.pid)
    if len(tried.headers) < sweep.world:
        problem = _never_met(context, sweep, records, result)
        if not sweep.found:
            raise Unmeasured(problem)
        _give_up(sweep, problem.what)
        return
    sweep.headers |= tried.headers
    for operation in sweep.left:
        one = judged(str(operation), sweep.world, tried, result.cause)
        sweep.found.append(one)
        sweep.left = sweep.left[1:]
        if not _ended(str(operation), sweep.world, tried):
            sweep.stuck += 1
            break
    if sweep.stuck >= MOST_STUCK:
        _give_up(sweep, f"{sweep.stuck} operations before it hung or crashed")


def _give_up(sweep: Sweep, why: str) -> None:
    sweep.found += [
        Capability(operation=str(one), processes=sweep.world, state="unasked", detail=why)
        for one in sweep.left
    ]
    sweep.left = ()


def _never_met(context: Context, sweep: Sweep, records: Path, result: LaunchResult) -> Problem:
    failures = read_failures(records, sweep.world)
    first = min(failures.values(), key=lambda failure: failure.at, default=None)
    what = result.what or result.cause.phrase
    if first is not None:
        what = f"rank {first.rank}: {first.type}: {first.message}"
    return Problem(
        cause=result.cause.value if not result.cause.usable else Cause.CRASH.value,
        what=f"{result.name}: not all of {sweep.world} ranks had a process group: {what}",
        rank=first.rank if first else None,
        log=log_path(context, result),
        excerpt=result.excerpt,
    )


def read_tried(folder: Path, world: int) -> Tried:
    """What each rank wrote, up to a last line that was cut off."""
    tried = Tried()
    for rank in range(world):
        try:
            text = rank_file(folder, rank).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.split("\n")[:-1]:
            try:
                _put(tried, rank, _LINE.validate_json(line))
            except ValidationError:
                break  # the operations after it have no answer, and that is owed
        trace = folder / f"rank-{rank}.trace.txt"
        if trace.is_file() and trace.stat().st_size:
            tried.timed_out.add(rank)
    return tried


def _put(tried: Tried, rank: int, line: ProbeHeader | Mark | ProbeClosing) -> None:
    if isinstance(line, ProbeHeader):
        tried.headers[rank] = line
    elif isinstance(line, Mark):
        tried.marks.setdefault(rank, {})[line.operation] = line
    else:
        tried.closed.add(rank)


def _ended(operation: str, world: int, tried: Tried) -> bool:
    return all(
        (mark := tried.marks.get(rank, {}).get(operation)) is not None and mark.phase in _ENDS
        for rank in range(world)
    )


def judged(operation: str, world: int, tried: Tried, cause: Cause) -> Capability:
    """What one operation came to over all ranks: the worst that any of them says."""
    marks = {rank: tried.marks.get(rank, {}).get(operation) for rank in range(world)}
    seconds = max((mark.seconds for mark in marks.values() if mark), default=0.0)

    def said(state: str, ranks: Iterable[int], what: str) -> Capability:
        names = ", ".join(map(str, sorted(ranks)))
        return Capability.model_validate(
            {
                "operation": operation,
                "processes": world,
                "state": state,
                "detail": f"rank {names}: {what}" if names else what,
                "seconds": seconds,
            }
        )

    wrong = {rank: mark.what for rank, mark in marks.items() if mark and mark.phase == "wrong"}
    if wrong:
        return said("wrong", [min(wrong)], wrong[min(wrong)])
    refused = {rank: mark.what for rank, mark in marks.items() if mark and mark.phase == "refused"}
    own = {rank: what for rank, what in refused.items() if not SECONDARY.search(what)}
    if own:
        # One that refuses leaves the others waiting for it.
        return said("refused", [min(own)], own[min(own)])
    open_ = {rank for rank, mark in marks.items() if mark is None or mark.phase not in _ENDS}
    if open_ or refused:
        return said(*_stuck(marks, open_ or set(refused), tried, cause))
    return said("right", [], "")


def _stuck(
    marks: Mapping[int, Mark | None], open_: set[int], tried: Tried, cause: Cause
) -> tuple[str, set[int], str]:
    """Which ranks an operation is stuck on: those that had not handed it to the process group."""
    early = {rank for rank in open_ if (mark := marks[rank]) is None or mark.phase == "begun"}
    ranks = early if early and early != open_ else open_
    where = "had not issued it when its time was over" if ranks is early else "waited in it"
    if tried.timed_out or cause in (Cause.HANG, Cause.TIMEOUT):
        return "hung", ranks, where
    where = "had not issued it" if ranks is early else "was in it"
    return "crashed", ranks, f"{where} when its process ended"
