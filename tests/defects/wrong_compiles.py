"""Defects of a compiled run, and what has to stop each."""

from __future__ import annotations

from tests.defects.defect import Defect


def _compiled(name: str, hook: str, stands_for: str, *caught: str, located: str) -> Defect:
    return Defect(
        name=name,
        stands_for=stands_for,
        hook=hook,
        stage="kernels.compile",
        launches=("compiled-baseline",),
        caught_by=tuple(f"compiled-baseline: {what}" for what in caught),
        located=located,
    )


COMPILED = (
    _compiled(
        "compiled again",
        "compilation:compiled_again",
        "a recompile at step 4",
        "compilations after step 1",
        located=r"step 4: layers\.0",
    ),
    _compiled(
        "eager fallback",
        "compilation:eager_from_step_3",
        "what was compiled runs eagerly, silently",
        "regions that ran eagerly",
        "calls that ran compiled code",
        located=r"step 3: layers\.0",
    ),
    _compiled(
        "ragged batch",
        "samples:ragged",
        "a batch of another shape, for which everything is compiled anew",
        "input shapes",
        "compilations after step 1",
        located=r"\(3, 256\) on rank 0 at step 3",
    ),
    _compiled(
        "graph broken",
        "compilation:graph_broken",
        "something that the compiler cannot trace",
        "graph breaks",
        located="rank 0",
    ),
    _compiled(
        "frame given up",
        "compilation:frame_given_up",
        "code that the compiler declines and runs as it is",
        "frames that were given up",
        located="rank 0, step 1: loss",
    ),
    _compiled(
        "block left out",
        "compilation:block_left_out",
        "a block that is never compiled",
        "compiled blocks",
        located="furthest off, of 1",
    ),
)
"""Of one process: what Dynamo does there it does in every layout."""
