"""How much of its limit each check uses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trn_validate.check import Check
from trn_validate.review import svg
from trn_validate.review.cells import Table
from trn_validate.review.material import Material
from trn_validate.review.plots import Plot


@dataclass(frozen=True)
class Margins:
    """The checks of one stage, by whether they can have a margin."""

    stage: str
    used: tuple[tuple[Check, float], ...]
    exact: tuple[Check, ...]
    """Equalities, and bounds of zero: they hold or do not."""


def used(check: Check) -> float | None:
    """The part of its limit that a check uses, 1 at the limit; None where it can have no margin.

    What is measured over the limit for an upper bound, and the limit over what is measured for a
    lower one.
    """
    if isinstance(check.measured, str) or isinstance(check.limit, str) or check.limit <= 0:
        return None
    if check.comparator in ("<=", "<"):
        return check.measured / check.limit
    if check.comparator in (">=", ">"):
        return check.limit / check.measured if check.measured > 0 else math.inf
    return None


def shown(check: Check) -> str:
    """The part used, for a table."""
    part = used(check)
    if part is None:
        return "exact" if check.comparator in ("==", "!=") or check.limit == 0 else "-"
    return f"{100 * part:.3g} %"


def margins(material: Material) -> tuple[Margins, ...]:
    """The checks of each stage that made any, in gate order."""
    return tuple(_of(v.stage, v.checks) for v in material.verdicts if v.checks)


def _of(stage: str, checks: Sequence[Check]) -> Margins:
    parts = [(check, used(check)) for check in checks]
    return Margins(
        stage,
        tuple((check, part) for check, part in parts if part is not None),
        tuple(check for check, part in parts if part is None),
    )


def margin_plots(material: Material) -> Iterator[Plot]:
    """Every check that has a margin, as the part of its limit that it uses."""
    all_ = margins(material)
    if not all_:
        return
    rows = [
        svg.Row(
            one.stage,
            tuple(part for check, part in one.used if check.passed),
            (
                *((part, str(check)) for check, part in one.used if not check.passed),
                *((math.inf, str(check)) for check in one.exact if not check.passed),
            ),
        )
        for one in all_
    ]
    yield Plot(
        title="Margin of every check to its limit",
        reads="A dot is a check: the part of its limit that it uses, on a logarithmic scale, with "
        "a lane for zero. A cross is a check that said no: beyond the dashed line, or at the right "
        "edge where it is exact. Exact checks that hold are counted in the numbers.",
        drawing=svg.rows(
            "part of the limit that each check uses, by stage",
            rows,
            across="measured / limit",
            log=True,
            limits=[svg.Mark(1.0, "limit")],
        ),
        table=Table(
            ("stage", "with a margin", "nearest to its limit", "exact", "exact that hold"),
            tuple(_row(one) for one in all_),
        ),
    )


def _row(one: Margins) -> tuple[str, ...]:
    nearest = max(one.used, key=lambda pair: _height(pair[1]), default=None)
    named = f"{nearest[0].name}: {100 * nearest[1]:.3g} %" if nearest else "-"
    hold = sum(check.passed for check in one.exact)
    return (one.stage, str(len(one.used)), named, str(len(one.exact)), str(hold))


def _height(part: float) -> float:
    return math.inf if math.isnan(part) else part
