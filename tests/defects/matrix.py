"""What the findings say: which defect was stopped by which check, as text and as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.defects.found import Finding, Findings

_CURVE = re.compile(r"\bloss\b|not finite")
"""Checks that a person makes who looks at a curve of the loss."""


@dataclass(frozen=True)
class Judged:
    """One defect, judged by what was meant for it."""

    finding: Finding

    @property
    def name(self) -> str:
        """Name of the defect."""
        return self.finding.defect.name

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that said no."""
        return tuple(check.name for check in self.finding.failed)

    @property
    def missed_by(self) -> tuple[str, ...]:
        """Checks that were meant to say no and did not."""
        return tuple(n for n in self.finding.defect.caught_by if n not in self.failed)

    @property
    def located(self) -> bool:
        """Whether a check that was meant for it names the rank, step, part or parameter."""
        meant = [c for c in self.finding.failed if c.name in self.finding.defect.caught_by]
        return any(re.search(self.finding.defect.located, str(check)) for check in meant)

    @property
    def seen_in_the_loss(self) -> bool:
        """Whether the loss alone would have shown it."""
        return any(_CURVE.search(name) for name in self.failed)

    @property
    def holds(self) -> bool:
        """Whether it was caught by the checks that were meant for it, and located."""
        return not self.missed_by and self.located


def judged(found: Findings) -> list[Judged]:
    """Every defect, in the order in which it was run."""
    return [Judged(finding) for finding in found.defects]


def part(name: str) -> str:
    """What a check asks, without the launch that it asks about."""
    launch, _, rest = name.partition(": ")
    return rest or launch


def escaped(found: Findings) -> list[Judged]:
    """Defects that were not caught by the check meant for them, or not located."""
    return [one for one in judged(found) if not one.holds]


def unproved(found: Findings) -> list[str]:
    """Checks, by what they ask, that passed without a defect and that no defect made fail."""
    clean = (check.name for verdict in found.clean.values() for check in verdict.checks)
    failed = {part(name) for one in judged(found) for name in one.failed}
    return [name for name in dict.fromkeys(part(name) for name in clean) if name not in failed]


def sound(found: Findings) -> bool:
    """Whether nothing escaped, and every layout gave the same bits first and last."""
    return bool(found.defects and found.repetitions) and not (
        escaped(found) or any(not again.equal for again in found.repetitions)
    )


def as_json(found: Findings) -> dict[str, object]:
    """Everything, for a machine."""
    return {
        "sound": sound(found),
        "seconds": found.seconds,
        "defects": [
            {
                "name": one.name,
                "stands_for": one.finding.defect.stands_for,
                "stage": one.finding.defect.stage,
                "launches": list(one.finding.defect.launches),
                "outcome": one.finding.outcome.value,
                "problem": one.finding.problem,
                "meant": list(one.finding.defect.caught_by),
                "missed_by": list(one.missed_by),
                "located": one.located,
                "seen_in_the_loss": one.seen_in_the_loss,
                "failed": {check.name: str(check) for check in one.finding.failed},
                "seconds": one.finding.seconds,
            }
            for one in judged(found)
        ],
        "repetitions": [
            {
                "launch": again.launch,
                "equal": again.equal,
                "compared": again.compared,
                "differing": list(again.differing),
            }
            for again in found.repetitions
        ],
        "unproved": unproved(found),
    }


def render(found: Findings) -> str:
    """The matrix, and what follows from it."""
    rows = judged(found)
    columns = list(dict.fromkeys(part(name) for one in rows for name in one.failed))
    width = max((len(one.name) for one in rows), default=0)
    head = "".join(f"{place:>3}" for place in range(1, len(columns) + 1))
    lines = [f"{'defect':<{width}} {head}  caught  located  in the loss"]
    lines += [
        f"{one.name:<{width}} {_cells(one, columns)}  {_yes(not one.missed_by):<6}  "
        f"{_yes(one.located):<7}  {_yes(one.seen_in_the_loss)}"
        for one in rows
    ]
    lines += ["", "X the check that was meant said no, x another did, . it held", ""]
    lines += [f"{place:>3}  {name}" for place, name in enumerate(columns, 1)]
    return "\n".join([*lines, "", *_summary(found, rows)]) + "\n"


def _cells(one: Judged, columns: list[str]) -> str:
    meant = {part(name) for name in one.finding.defect.caught_by if name in one.failed}
    failed = {part(name) for name in one.failed}
    made = {part(name) for name in one.finding.made}
    marks = (
        "X" if name in meant else "x" if name in failed else "." if name in made else " "
        for name in columns
    )
    return "".join(f"{mark:>3}" for mark in marks)


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _summary(found: Findings, rows: list[Judged]) -> list[str]:
    blind = [one.name for one in rows if not one.seen_in_the_loss]
    lines = [
        f"{len(rows)} defects, {sum(one.holds for one in rows)} caught by the checks meant for "
        f"them and located, in {found.seconds:.0f} s",
        f"{len(blind)} a loss curve alone would have let through: {', '.join(blind)}",
    ]
    for one in escaped(found):
        why = f"not by {', '.join(one.missed_by)}" if one.missed_by else "not located"
        problem = f"; {one.finding.problem}" if one.finding.problem else ""
        lines.append(f"ESCAPED {one.name}: {one.finding.outcome}, {why}{problem}")
    for again in found.repetitions:
        how = f"the same {again.compared} numbers and digests first and last"
        if not again.equal:
            how = f"NOT EQUAL first and last: {', '.join(again.differing[:3])}"
        lines.append(f"{again.launch} without a defect: {how}")
    if rest := unproved(found):
        lines.append(f"checks that nothing here made fail: {', '.join(rest)}")
    return lines
