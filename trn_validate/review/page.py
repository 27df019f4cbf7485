"""report.html: a pure function of what a run folder holds, in one file without a script.

It names no time of rendering, so the same folder gives the same bytes, and whoever doubts a page
can make it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trn_validate.evidence import evidence
from trn_validate.gate import Standing, first_closed
from trn_validate.review import claims, kernel_tables, margins, plots, rank_plots, sections
from trn_validate.review.cells import Table
from trn_validate.review.material import Material
from trn_validate.review.node_table import node_table
from trn_validate.review.summary import decision, failure_lines
from trn_validate.review.templates import render
from trn_validate.review.vendor import OUTSIDE, vendor_rows

NAME = "report.html"


def page(material: Material) -> str:
    """The whole page."""
    real, _ = evidence({v.stage: v for v in material.verdicts})
    closed = first_closed(material.standings)
    return render(
        "page.html",
        run=material.run,
        plan=material.plan,
        real=real,
        kind="EVIDENCE" if real else "REHEARSAL",
        decision=decision(material.standings),
        tone=_tone(closed, real=real),
        began=min((v.started_at for v in material.verdicts), default=""),
        seconds=sum(v.seconds for v in material.verdicts),
        holding=sum(c.passed for v in material.verdicts for c in v.checks),
        checks=sum(len(v.checks) for v in material.verdicts),
        closed=closed,
        proven=claims.proven(material),
        unproven=claims.unproven(material),
        reasons=sorted({v.host.reason for v in material.verdicts}),
        stack=tuple(sections.stack_tables(material)),
        release=tuple(sections.release_lines(material)),
        boxes=sections.boxes(material),
        ladder=sections.ladder_table(material),
        nodes=node_table(material.verdicts),
        groups=_groups(material),
        matrix=kernel_tables.matrix(material),
        in_training=kernel_tables.in_training(material),
        compilations=kernel_tables.compilations(material),
        failures=failure_lines(material.standings)[:-1],
        continuing=_continuing(material),
        vendor=_vendor(material),
        vendor_note=OUTSIDE,
        unread=material.unread,
    )


def _tone(closed: Standing | None, *, real: bool) -> str:
    """Class of the style sheet for the decision; a rehearsal never looks like a pass."""
    if closed is None:
        return "good" if real else "open"
    return "bad" if closed.verdict is not None and closed.freshness.fresh else "open"


def _groups(material: Material) -> tuple[tuple[str, tuple[plots.Plot, ...]], ...]:
    """Every plot of the report by what it shows, in the order of the page."""
    makers: Iterable[tuple[str, Callable[[Material], Iterable[plots.Plot]]]] = (
        ("Loss over the baseline", plots.loss_plots),
        ("Deviation at each step", plots.deviation_plots),
        ("Gradient deviation per parameter", plots.gradient_plots),
        ("Step time by phase", rank_plots.time_plots),
        ("Memory per rank", rank_plots.memory_plots),
        ("Margin of every check", margins.margin_plots),
    )
    return tuple((title, tuple(make(material))) for title, make in makers)


def _continuing(material: Material) -> str:
    """The command that goes on with a run like this one."""
    first = next((v.rerun for v in material.verdicts if " --only " in v.rerun), "")
    return first.rpartition(" --only ")[0]


def _vendor(material: Material) -> Table | None:
    if material.vendor is None:
        return None
    return Table(("of the run", "value"), vendor_rows(material.vendor), "The vendor's own run")
