"""report.md: a pure function of the verdicts, for a pull request or a terminal.

The verdicts are the record; nothing is ever read back from here.
"""

from __future__ import annotations

from collections.abc import Sequence

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.gate import Standing
from trn_validate.parts import Layout
from trn_validate.review.cells import (
    GRAD_NORM,
    GRADIENT,
    LOSS,
    PARAMETERS,
    communication,
    deviation,
    number,
)
from trn_validate.review.node_table import node_table
from trn_validate.review.summary import decision, failure_lines
from trn_validate.review.vendor import vendor_lines
from trn_validate.spec import AXES
from trn_validate.stack import stack_of
from trn_validate.vendor_record import VendorRecord
from trn_validate.verdict import Verdict

NAME = "report.md"

NOT_VALIDATED = (
    "health counters, held cores and the lineage of a Neuron stack, where the target is the CPU",
    "single operations on a device, where the target is the CPU",
    "convergence: a few steps say nothing about a whole training run",
)
"""What this version asks nowhere; a reader must not take silence for an answer."""


def render(
    run: str, plan: Plan, standings: Sequence[Standing], vendor: VendorRecord | None = None
) -> str:
    """The whole report as Markdown, with the vendor's own run beside the gate."""
    verdicts = [s.verdict for s in standings if s.verdict is not None]
    trained = [(v, v.layout) for v in verdicts if v.layout is not None]
    sections = [
        [f"**{decision(standings)}**", "", _run_line(run, plan)],
        _stack(verdicts),
        _stages(standings),
        _ladder(trained),
        _cost(trained),
        _nodes(verdicts),
        _failures(standings),
        vendor_lines(plan, vendor),
        _checks(verdicts),
        _not_validated(),
    ]
    return "\n".join("\n".join(section) + "\n" for section in sections if section)


def _run_line(run: str, plan: Plan) -> str:
    over = f", over {plan.nodes} nodes" if plan.nodes > 1 else ""
    return f"Run `{run}`, target {plan.target}, path {plan.path}{over}."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        # A command line that a check names may reach over several lines; a row may not.
        whole = (" ".join(cell.split("\n")).replace("|", "\\|") for cell in cells)
        return "| " + " | ".join(whole) + " |"

    return [line(header), line(["---"] * len(header)), *(line(row) for row in rows)]


def _stack(verdicts: Sequence[Verdict]) -> list[str]:
    versions = stack_of(verdicts)
    if not versions:
        return ["## Stack", "", "No data: environment.imports has not run."]
    hosts = {v.host.reason for v in verdicts}
    rows = [[name, version] for name, version in versions.items()]
    return ["## Stack", "", *sorted(hosts), "", *_table(["package", "version"], rows)]


def _stages(standings: Sequence[Standing]) -> list[str]:
    rows = []
    for standing in standings:
        verdict = standing.verdict
        passed = sum(c.passed for c in verdict.checks) if verdict else 0
        rows.append(
            [
                standing.stage.id,
                verdict.outcome.value if verdict else "-",
                f"{passed}/{len(verdict.checks)}" if verdict else "-",
                f"{verdict.seconds:.1f}" if verdict else "-",
                "" if standing.freshness.fresh else str(standing.freshness),
                standing.stage.asks,
            ]
        )
    header = ["stage", "outcome", "checks", "seconds", "state", "asks"]
    return ["## Stages", "", *_table(header, rows)]


def _ladder(trained: Sequence[tuple[Verdict, Layout]]) -> list[str]:
    if not trained:
        return ["## Ladder", "", "No data: no stage has trained yet."]
    header = [
        *("stage", "model", "processes", *AXES, "sequence parallel", "tokens per step"),
        *("loss deviation (limit)", "grad norm deviation (limit)", "gradient deviation (limit)"),
        "parameter deviation (limit)",
    ]
    rows = [
        [
            verdict.stage,
            layout.model,
            str(layout.processes),
            *(str(getattr(layout.degrees, axis)) for axis in AXES),
            ("yes" if layout.sequence_parallel else "no") if layout.degrees.tp > 1 else "-",
            str(layout.tokens_per_step),
            deviation(verdict, LOSS),
            deviation(verdict, GRAD_NORM),
            deviation(verdict, GRADIENT),
            deviation(verdict, PARAMETERS),
        ]
        for verdict, layout in trained
    ]
    note = (
        "Deviations are against the ladder's reference: of loss and grad norm the largest over "
        "all steps, of the gradients of step 1 and of the parameters after the last step the "
        "largest over all parameters."
    )
    return ["## Ladder", "", *_table(header, rows), "", note]


def _cost(trained: Sequence[tuple[Verdict, Layout]]) -> list[str]:
    if not trained:
        return ["## Cost", "", "No data: no stage has trained yet."]
    header = ["stage", "processes", "peak memory", "tokens/s", "step s", "communication"]
    rows = []
    for verdict, layout in trained:
        peak = verdict.measures.get("peak_memory_bytes")
        speed = verdict.measures.get("tokens_per_second")
        seconds = verdict.measures.get("step_seconds")
        rows.append(
            [
                verdict.stage,
                str(layout.processes),
                f"{peak / 2**30:.2f} GiB" if peak else "-",
                f"{speed:.0f}" if speed else "-",
                f"{seconds:.3f}" if seconds else "-",
                communication(verdict),
            ]
        )
    note = (
        "Of a few steps on this machine: recorded, and not judged. Memory is that of the rank "
        "with most. Communication is calls and bytes of one step, of the rank that has most."
    )
    return ["## Cost", "", *_table(header, rows), "", note]


def _nodes(verdicts: Sequence[Verdict]) -> list[str]:
    """Nothing where all ran on one: there is nothing to tell apart."""
    table = node_table(verdicts)
    if table is None:
        return []
    note = "Of the slowest rank of a node, over the median of all ranks. Judged by nothing."
    return ["## Nodes", "", *_table(table.header, table.rows), "", note]


def _failures(standings: Sequence[Standing]) -> list[str]:
    lines = failure_lines(standings)
    if not lines:
        return ["## What failed", "", "Nothing."]
    return ["## What failed", "", "```", *lines[:-1], "```"]


def _checks(verdicts: Sequence[Verdict]) -> list[str]:
    lines = ["## Checks"]
    for verdict in verdicts:
        if not verdict.checks:
            continue
        header = ["check", "measured", "", "limit", "unit", "holds", "detail"]
        rows = [_check_row(check) for check in verdict.checks]
        lines += ["", f"### {verdict.stage}", "", *_table(header, rows)]
    return lines if len(lines) > 1 else [*lines, "", "No data."]


def _check_row(check: Check) -> list[str]:
    return [
        check.name,
        number(check.measured),
        f"`{check.comparator}`",
        number(check.limit),
        check.unit,
        "yes" if check.passed else "**no**",
        check.detail,
    ]


def _not_validated() -> list[str]:
    return ["## What was not validated", "", *(f"- {item}" for item in NOT_VALIDATED)]
