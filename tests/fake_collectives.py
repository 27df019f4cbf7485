"""Ranks of a probe of collectives that never were, and what can be wrong with their answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from trn_validate.launch import LaunchRequest
from trn_validate.records import Mark, Phase, ProbeClosing, ProbeHeader, rank_file
from trn_validate.spec import CollectivesSpec

Lines = dict[int, list[ProbeHeader | Mark | ProbeClosing]]
Spoil = Callable[[Lines], object]
_PIDS = count(40_000)

TRACE = "Timeout (0:01:40)!\nThread 0x1 (most recent call first):\n"


def imagined(request: LaunchRequest) -> Lines:
    """Every rank has every operation right."""
    path = Path(request.argv[-1])
    spec = CollectivesSpec.model_validate_json(path.read_bytes())
    world = int(request.argv[request.argv.index("--nproc-per-node") + 1])
    return {rank: _lines(spec, rank, world) for rank in range(world)}


def _lines(spec: CollectivesSpec, rank: int, world: int) -> list[ProbeHeader | Mark | ProbeClosing]:
    header = ProbeHeader(
        rank=rank,
        world_size=world,
        pid=next(_PIDS),
        started=1.5e9,
        device=spec.device,
        backend=spec.backend,
        versions={"torch": "2.14.1"},
        hooks=spec.hooks,
    )
    marks = (
        Mark(operation=str(one), phase=phase, seconds=0.01)
        for one in spec.operations
        for phase in _PHASES
    )
    return [header, *marks, ProbeClosing(operations=len(spec.operations))]


_PHASES: tuple[Phase, ...] = ("begun", "issued", "right")


def write(request: LaunchRequest, lines: Lines) -> None:
    """Write what the ranks wrote."""
    folder = request.folder / "records"
    folder.mkdir(parents=True, exist_ok=True)
    for rank, some in lines.items():
        text = "".join(line.model_dump_json() + "\n" for line in some)
        rank_file(folder, rank).write_text(text)


def ends(operation: str, phase: Phase, what: str, *, rank: int | None = None) -> Spoil:
    """An operation ends so on a rank, or on all."""

    def apply(lines: Lines) -> None:
        for one in lines if rank is None else [rank]:
            lines[one] = [
                line.model_copy(update={"phase": phase, "what": what})
                if isinstance(line, Mark) and (line.operation, line.phase) == (operation, "right")
                else line
                for line in lines[one]
            ]

    return apply


def stuck(operation: str, *, rank: int | None = None) -> Spoil:
    """No rank comes out of an operation; that one, or none, has not even issued it."""

    def apply(lines: Lines) -> None:
        for one, some in lines.items():
            last = "begun" if one == rank else "issued"
            place = next(
                (
                    i
                    for i, line in enumerate(some)
                    if isinstance(line, Mark) and (line.operation, line.phase) == (operation, last)
                ),
                len(some),
            )
            lines[one] = some[: place + 1]

    return apply


def headers(**changes: object) -> Spoil:
    """Every rank says something else of itself."""

    def apply(lines: Lines) -> None:
        for one, (head, *rest) in lines.items():
            lines[one] = [head.model_copy(update=changes), *rest]

    return apply
