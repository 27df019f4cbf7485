"""The tables of the page, in its order: stack, gate, checks, ladder, kernels, compilation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trn_validate.check import Check
from trn_validate.gate import Standing
from trn_validate.review.cells import (
    GRAD_NORM,
    GRADIENT,
    LOSS,
    PARAMETERS,
    Table,
    communication,
    deviation,
    number,
)
from trn_validate.review.margins import shown
from trn_validate.review.material import Material
from trn_validate.spec import AXES
from trn_validate.stack import stack_of
from trn_validate.verdict import Outcome, Verdict

IMPORTS = "environment.imports"
RELEASE = "neuron release"
"""The fact of environment.imports that names the release that a stack is nearest to."""

_SIGNS = {
    Outcome.PASSED: "\u2713",
    Outcome.FAILED: "\u2715",
    Outcome.ERROR: "!",
    Outcome.BLOCKED: "\u2298",
    Outcome.UNSUPPORTED: "\u25cb",
}
"""A sign beside each word, so that neither colour nor reading is needed."""


@dataclass(frozen=True)
class Box:
    """One stage in the strip of the gate, and its checks."""

    stage: str
    asks: str
    word: str
    """Its outcome, or ``stale``, or ``no verdict``."""
    sign: str
    kind: str
    """Class of the style sheet: good, bad, open."""
    note: str
    passed: int
    checks: Table
    seconds: str


def boxes(material: Material) -> tuple[Box, ...]:
    """Every stage of the plan, in gate order."""
    return tuple(_box(standing) for standing in material.standings)


def _box(standing: Standing) -> Box:
    verdict = standing.verdict
    word, sign, note = "no verdict", "\u00b7", ""
    if verdict is not None and not standing.freshness.fresh:
        word, sign, note = "stale", "~", f"{verdict.outcome}; {standing.freshness.reason}"
    elif verdict is not None:
        word, sign = str(verdict.outcome), _SIGNS[verdict.outcome]
        note = _note(standing, verdict)
    said_no = verdict is not None and verdict.outcome in (Outcome.FAILED, Outcome.ERROR)
    checks = verdict.checks if verdict else ()
    return Box(
        stage=standing.stage.id,
        asks=standing.stage.asks,
        word=word,
        sign=sign,
        kind="good" if standing.opens else "bad" if said_no else "open",
        note=note,
        passed=sum(check.passed for check in checks),
        checks=_checks(standing.stage.id, checks),
        seconds=f"{verdict.seconds:.1f} s" if verdict else "-",
    )


def _note(standing: Standing, verdict: Verdict) -> str:
    if verdict.blocked_by:
        return f"by {verdict.blocked_by}"
    if verdict.unsupported:
        accepted = "accepted by the plan" if standing.opens else "not accepted by the plan"
        return f"{verdict.unsupported} ({accepted})"
    return ""


def _checks(stage: str, checks: Sequence[Check]) -> Table:
    rows = tuple(
        (
            check.name,
            "yes" if check.passed else "NO",
            number(check.measured),
            check.comparator,
            number(check.limit),
            check.unit,
            shown(check),
            _source(check),
            " ".join(check.detail.split()),
        )
        for check in checks
    )
    header = ("check", "holds", "measured", "relation", "limit", "unit", "limit used")
    bad = frozenset(n for n, check in enumerate(checks) if not check.passed)
    return Table((*header, "limit from", "detail"), rows, f"Checks of {stage}", bad)


def _source(check: Check) -> str:
    basis = check.basis
    if basis is None:
        return check.source
    return (
        f"max({basis.floor:.3g}, {basis.factor:g} x control {basis.control:.3g}), "
        f"ceiling {basis.ceiling:.3g}"
    )


def stack_tables(material: Material) -> Iterator[Table]:
    """Versions as the processes found them, and the machine."""
    if versions := stack_of(material.verdicts):
        yield Table(("package", "version"), tuple(versions.items()), "Packages, as they were found")
    if material.environment:
        rows = tuple(material.environment.items())
        yield Table(("of the machine", "value"), rows, "The machine, as its fingerprint has it")


def release_lines(material: Material) -> Iterator[str]:
    """How the stack stands to the table of releases."""
    imports = material.verdict(IMPORTS)
    if imports is None:
        yield "No data: environment.imports has not run."
        return
    if material.plan.profile.device != "neuron":
        yield "The table of releases is of Neuron stacks; this target has none."
        return
    nearest = imports.facts.get(RELEASE)
    yield f"Nearest release: {nearest}." if nearest else "No known release has these versions."
    findings = {
        key: text for key, text in imports.facts.items() if key.split()[0] in ("error", "warning")
    }
    yield from (f"{key}: {text}" for key, text in findings.items())
    if not findings:
        yield "Nothing deviates from it."


def ladder_table(material: Material) -> Table | None:
    """What each layout was, how far it was from its reference, and what it took."""
    rows = tuple(_rung(material, v) for v in material.verdicts if v.layout is not None)
    header = (
        *("stage", "model", "processes", *AXES, "tokens per step"),
        *("loss deviation (limit)", "grad norm (limit)", "gradient (limit)", "parameters (limit)"),
        *("planned GiB a rank", "peak GiB", "tokens/s", "step s", "communication"),
    )
    return Table(header, rows, "Layouts, deviations and cost") if rows else None


def _rung(material: Material, verdict: Verdict) -> tuple[str, ...]:
    layout, measures = verdict.layout, verdict.measures
    if layout is None:
        return ()
    peak = measures.get("peak_memory_bytes")
    return (
        verdict.stage,
        layout.model,
        str(layout.processes),
        *(str(getattr(layout.degrees, axis)) for axis in AXES),
        str(layout.tokens_per_step),
        *(deviation(verdict, kind) for kind in (LOSS, GRAD_NORM, GRADIENT, PARAMETERS)),
        f"{material.plan.profile.memory_gib_per_core:g}",
        f"{peak / 2**30:.2f}" if peak else "-",
        _measure(verdict, "tokens_per_second", ".0f"),
        _measure(verdict, "step_seconds", ".3f"),
        communication(verdict),
    )


def _measure(verdict: Verdict, name: str, form: str) -> str:
    value = verdict.measures.get(name)
    return "-" if value is None else format(value, form)
