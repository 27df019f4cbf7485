"""Plots over steps and parameters, each with its legend and its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby

from markupsafe import Markup

from trn_validate.distances import Deviation
from trn_validate.review import svg
from trn_validate.review.axes import short
from trn_validate.review.cells import GRAD_NORM, GRADIENT, LOSS, Table
from trn_validate.review.material import Material
from trn_validate.review.pairs import Pair, deviations_of, pairs

OUTLIER = 10.0
"""A parameter is named once it is so many times further off than the median one."""


@dataclass(frozen=True)
class Plot:
    """A figure: the drawing, how to read it, and its numbers."""

    title: str
    reads: str
    drawing: Markup
    table: Table
    legend: tuple[tuple[Markup, str], ...] = ()
    notes: tuple[str, ...] = ()
    """Outliers, by run."""


def loss_plots(material: Material) -> Iterator[Plot]:
    """Loss of every rung, and how far it is from the reference's, with the band allowed."""
    for root, group in _by_step_root(material):
        reference = material.launch(root)
        if reference is None:
            continue
        curve = tuple((float(step.step), step.loss) for step in reference.steps)
        own = svg.Series(reference.name, curve, 0)
        others = [
            svg.Series(p.name, tuple((float(b.step), b.loss) for _, b in p.steps), n)
            for n, p in enumerate(group, 1)
        ]
        yield Plot(
            title=f"Loss, {root}",
            reads="Loss of the reference and of every run held against it. Healthy runs lie on "
            "one line; the next plot shows what is between them.",
            drawing=svg.lines(f"loss by step, {root}", [*others, own], across="step", log=False),
            table=_by_step([own, *others]),
            legend=_legend([own, *others]),
        )
        yield _difference_plot(root, group)


def _difference_plot(root: str, group: Sequence[Pair]) -> Plot:
    series = [svg.Series(p.name, p.losses, n) for n, p in enumerate(group, 1)]
    limits = [limit for p in group if (limit := p.limit(LOSS)) is not None]
    band = min(limits, default=None)
    allowed = f"The band is {short(band)} nats, the least of their limits. " if band else ""
    return Plot(
        title=f"Loss minus the reference's, {root}",
        reads=f"{allowed}Each run minus the one that it was held against, in nats. A line that "
        "walks away is a fault; one that jitters around zero is rounding.",
        drawing=svg.lines(
            f"loss minus the reference's by step, {root}",
            series,
            across="step",
            log=False,
            band=band or None,
        ),
        table=_by_step(series),
        legend=_legend(series),
    )


def deviation_plots(material: Material) -> Iterator[Plot]:
    """Distance from the reference at every step, on a logarithmic scale, with limit and noise."""
    for root, group in _by_step_root(material, noise=True):
        styles = _styles(group)
        losses = [
            svg.Series(p.name, tuple((x, abs(y)) for x, y in p.losses), n)
            for n, p in zip(styles, group, strict=True)
        ]
        norms = [svg.Series(p.name, p.norms, n) for n, p in zip(styles, group, strict=True)]
        for what, series, kind in (
            ("Loss deviation, nats", losses, LOSS),
            ("Grad norm deviation, relative", norms, GRAD_NORM),
        ):
            yield Plot(
                title=f"{what}, {root}",
                reads="Distance from the reference at each step. The control moves by rounding "
                "alone; the dashed line is the limit. Zero and what is no number have lanes of "
                "their own, at the bottom and at the top.",
                drawing=svg.lines(
                    f"{what} by step, {root}",
                    series,
                    across="step",
                    log=True,
                    limits=_limits(group, kind),
                ),
                table=_by_step(series),
                legend=_legend(series),
            )


def gradient_plots(material: Material) -> Iterator[Plot]:
    """Distance of every parameter's gradient of step 1, sorted, with the outliers by name."""
    for root, group in _by_root(material):
        found = [(pair, deviations_of(material, pair)) for pair in group]
        told = [(pair, _sorted(all_)) for pair, all_ in found if all_]
        if not told:
            continue
        series = [
            svg.Series(p.name, tuple((n, d.relative) for n, d in enumerate(all_, 1)), style)
            for style, (p, all_) in enumerate(told, 1)
        ]
        yield Plot(
            title=f"Gradient deviation per parameter, {root}",
            reads="Relative L2 distance of each parameter's gradient of step 1, the furthest "
            "first. A fault in one layer is a cliff on the left; one everywhere lifts the line.",
            drawing=svg.lines(
                f"gradient deviation by parameter, {root}",
                series,
                across="parameters, the furthest first",
                log=True,
                limits=_limits([p for p, _ in told], GRADIENT),
            ),
            table=Table(
                ("run", "furthest parameters", "median"),
                tuple((p.name, _furthest(all_), short(_median(all_))) for p, all_ in told),
            ),
            legend=_legend(series),
            notes=tuple(_outliers(told)),
        )


def _by_root(material: Material, *, noise: bool = False) -> Iterator[tuple[str, list[Pair]]]:
    found = sorted(pairs(material, noise=noise), key=lambda pair: pair.root)
    for root, group in groupby(found, key=lambda pair: pair.root):
        yield root, list(group)


def _by_step_root(material: Material, *, noise: bool = False) -> Iterator[tuple[str, list[Pair]]]:
    """Without those of a single step, which the tables tell in full."""
    found = _by_root(material, noise=noise)
    return ((r, group) for r, group in found if max(len(pair.steps) for pair in group) > 1)


def _styles(group: Sequence[Pair]) -> list[int]:
    """The control in that of a reference, and every other run as in the plots without it."""
    numbers = count(1)
    return [0 if pair.noise else next(numbers) for pair in group]


def _legend(series: Sequence[svg.Series]) -> tuple[tuple[Markup, str], ...]:
    return tuple((svg.key(one.style), one.name) for one in series)


def _by_step(series: Sequence[svg.Series]) -> Table:
    steps = sorted({x for one in series for x, _ in one.points})
    columns = [dict(one.points) for one in series]
    return Table(
        ("step", *(one.name for one in series)),
        tuple(
            (f"{step:.0f}", *(f"{c[step]:.9g}" if step in c else "-" for c in columns))
            for step in steps
        ),
    )


def _limits(group: Sequence[Pair], kind: str) -> list[svg.Mark]:
    """The least and the largest limit, where any is above zero."""
    values = {limit for pair in group if (limit := pair.limit(kind)) is not None and limit > 0}
    if not values:
        return []
    ends = dict.fromkeys((min(values), max(values)))
    return [svg.Mark(value, f"limit {short(value)}") for value in ends]


def _sorted(all_: Sequence[Deviation]) -> list[Deviation]:
    """The furthest first; what is no number is furthest of all."""
    return sorted(all_, key=lambda one: (-_height(one), one.name))


def _height(one: Deviation) -> float:
    return math.inf if math.isnan(one.relative) else one.relative


def _median(furthest_first: Sequence[Deviation]) -> float:
    return furthest_first[len(furthest_first) // 2].relative


def _furthest(furthest_first: Sequence[Deviation]) -> str:
    return ", ".join(f"{one.name} {one.relative:.2e}" for one in furthest_first[:3])


def _outliers(told: Sequence[tuple[Pair, Sequence[Deviation]]]) -> Iterator[str]:
    for pair, all_ in told:
        limit, usual = pair.limit(GRADIENT), _height(all_[len(all_) // 2])
        out = [
            one
            for one in all_
            if (limit and not (one.relative <= limit)) or not (_height(one) <= OUTLIER * usual)
        ]
        # Where the median is zero every other one is infinitely further off, which says nothing.
        if out and (usual > 0 or not math.isfinite(_height(out[0]))):
            names = ", ".join(f"{one.name} ({one.relative:.2e})" for one in out[:6])
            more = f" and {len(out) - 6} more" if len(out) > 6 else ""
            yield f"{pair.name}: {names}{more}"
