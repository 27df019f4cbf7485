"""Plots over the ranks of each launch: where the seconds go, and how much memory is taken."""

from __future__ import annotations

from collections.abc import Iterator

from trn_validate.review import svg
from trn_validate.review.axes import short
from trn_validate.review.cells import Table
from trn_validate.review.figures import PHASES, TOTAL
from trn_validate.review.material import Material
from trn_validate.review.plots import Plot


def time_plots(material: Material) -> Iterator[Plot]:
    """Where a step's seconds go, on the slowest rank of every launch that was timed."""
    timed = [(one, one.slowest) for one in material.launches]
    shown = [(one, rank.seconds) for one, rank in timed if rank is not None]
    if not shown:
        return
    names = (*PHASES, "other")
    parts = [tuple(seconds[p] for p in PHASES) for _, seconds in shown]
    rests = [max(0.0, s[TOTAL] - sum(p)) for p, (_, s) in zip(parts, shown, strict=True)]
    all_ = [(*some, rest) for some, rest in zip(parts, rests, strict=True)]
    bars = [
        svg.Bar(one.name, segments, f"{sum(segments):.3g} s")
        for (one, _), segments in zip(shown, all_, strict=True)
    ]
    yield Plot(
        title="Step time by phase",
        reads="Median seconds of a step after the first, of the slowest rank of each launch. "
        "From left to right in the order of the legend. Judged by nothing.",
        drawing=svg.bars("seconds of a step by phase and launch", bars, across="seconds"),
        table=Table(
            ("launch", *names),
            tuple(
                (one.place, *(f"{s:.4f}" for s in segments))
                for (one, _), segments in zip(shown, all_, strict=True)
            ),
        ),
        legend=tuple((svg.key(n, filled=True), name) for n, name in enumerate(names)),
    )


def memory_plots(material: Material) -> Iterator[Plot]:
    """Peak memory of every rank of every launch, beside what the plan counts with."""
    launches = [one for one in material.launches if one.ranks]
    if not launches:
        return
    peaks = [[rank.peak_bytes / 2**30 for rank in one.ranks] for one in launches]
    planned = material.plan.profile.memory_gib_per_core
    yield Plot(
        title="Memory per rank",
        reads="Peak memory of each rank in GiB, a dot each; ranks that are alike lie on one "
        "another. The dashed line is what the plan counts with for a rank. Judged by nothing.",
        drawing=svg.rows(
            "peak memory by launch and rank",
            [svg.Row(o.name, tuple(p)) for o, p in zip(launches, peaks, strict=True)],
            across="GiB",
            log=False,
            limits=[svg.Mark(planned, f"plan {short(planned)}")],
        ),
        table=Table(
            ("launch", "ranks", "least GiB", "most GiB"),
            tuple(
                (one.place, str(len(p)), f"{min(p):.3f}", f"{max(p):.3f}")
                for one, p in zip(launches, peaks, strict=True)
            ),
        ),
    )
