"""Checks on a compiled launch: it really ran compiled, in one graph per region, and once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trn_validate.base import median
from trn_validate.check import Check, none_found
from trn_validate.describing import series
from trn_validate.folded import Shape
from trn_validate.launching import Trial
from trn_validate.records import Compilation


def compile_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`compile_checks` makes."""
    return tuple(
        f"{name}: {part}"
        for part in (
            "compiled blocks",
            "calls that ran compiled code",
            "regions that ran eagerly",
            "frames that were given up",
            "graph breaks",
            "compilations after step 1",
            "input shapes",
        )
    )


def compile_checks(trial: Trial, layers: int) -> list[Check]:
    """Whether a launch ran compiled throughout.

    Args:
        layers: blocks of the model; each rank has to have compiled all of them.
    """
    blocks, calls, eager, refused, breaks, again, shapes = compile_names(trial.spec.name)
    found = {rank: record.compilation for rank, record in trial.records.ranks.items()}
    spec, lines = trial.spec, list(found.values())
    fewest = min((line.blocks if line else 0 for line in lines), default=0)
    # Every block and the loss, in each micro-batch; a loss in chunks is called more often.
    owed = spec.steps * spec.accumulation * (layers + 1)
    ran = [(line.compiled_calls, max(line.calls, owed)) if line else (0, owed) for line in lines]
    worst = max(ran, key=lambda pair: pair[1] - pair[0], default=(0, owed))
    return [
        _equal(blocks, fewest, layers, len(lines)),
        _equal(calls, *worst, len(lines)),
        _nothing(eager, found, lambda line: line.eager),
        _nothing(refused, found, lambda line: line.refused),
        _nothing(breaks, found, lambda line: line.breaks),
        _nothing(again, found, lambda line: line.recompiles),
        _shapes(shapes, trial.records.shapes),
    ]


def _equal(name: str, measured: int, limit: int, ranks: int) -> Check:
    return Check(
        name=name,
        measured=measured,
        comparator="==",
        limit=limit,
        source="derived",
        detail=f"the rank that is furthest off, of {ranks}",
    )


def _nothing(
    name: str,
    found: Mapping[int, Compilation | None],
    what: Callable[[Compilation], Sequence[str]],
) -> Check:
    """No rank saw any of it; a rank without a record counts as one that did."""
    seen = [(rank, text) for rank, line in found.items() if line for text in what(line)]
    silent = [rank for rank, line in found.items() if line is None]
    detail = f"rank {seen[0][0]}, {seen[0][1]}" if seen else f"{len(found)} ranks watched"
    if silent:
        detail = f"rank {silent[0]} left no record of its compilations"
    return none_found(name, len(seen) + len(silent) if found else 1, detail)


def _shapes(name: str, shapes: Mapping[Shape, tuple[int, int]]) -> Check:
    order = sorted(shapes, key=lambda shape: (shapes[shape], shape))
    detail = f"{order[0]} at every step" if order else "no step"
    if len(order) > 1:
        step, rank = shapes[order[1]]
        detail = f"{order[1]} on rank {rank} at step {step}"
    return Check(
        name=name,
        measured=len(shapes),
        comparator="==",
        limit=1,
        unit="shapes",
        source="derived",
        detail=detail,
    )


def compile_measures(trial: Trial, eager_seconds: Sequence[float]) -> dict[str, float]:
    """Compile seconds, and the steady step against the eager run's, which nothing judges.

    The first two steps are left out of the steady ones: the first compiles, and the second is the
    first to be timed without. The spread is over steps.
    """
    lines = [r.compilation for r in trial.records.ranks.values() if r.compilation is not None]
    found = {
        "compile_seconds": max((line.seconds for line in lines), default=0.0),
        "compiled_graphs": float(max((line.graphs for line in lines), default=0)),
    }
    compiled, eager = series(trial)["step_seconds"][2:], eager_seconds[2:]
    if compiled and eager:
        found |= {
            "compiled_step_seconds": median(compiled),
            "eager_step_seconds": median(eager),
            "compiled_over_eager": median(compiled) / median(eager),
            "compiled_over_eager_least": min(compiled) / max(eager),
            "compiled_over_eager_most": max(compiled) / min(eager),
        }
    return found
