"""Which check finds which wrong kernel: every check is made of every one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from tests.defects.kernels.mutant import FAMILIES, Mutant
from trn_validate.kernels.opcheck.accuracy import NORMS
from trn_validate.kernels.opcheck.run import DTYPES
from trn_validate.kernels.opcheck.subject import said

RAISED = "raised"
"""Stands for the checks of a family that ended with an error, so that none was made."""


@dataclass(frozen=True)
class Row:
    """One wrong kernel."""

    mutant: Mutant
    failed: tuple[str, ...]
    """Names of the checks that said no, without the kernel's name."""

    @property
    def caught(self) -> bool:
        """Whether the check that is meant for it said no."""
        return self.mutant.check in self.failed

    def dtypes(self, column: str) -> str:
        """Letters of the dtypes whose check of this column said no."""
        return "".join(
            name[0]
            for name in map(said, DTYPES)
            if any(one.startswith(name) and part(one) == column for one in self.failed)
        )


def part(name: str) -> str:
    """What a check asks: its name without the dtype; both norms of an error are one."""
    for norm in NORMS:
        name = name.removesuffix(f": {norm} error")
    return re.sub(r"^\w+(: |, )", "", name)


def measured(mutant: Mutant) -> Row:
    """Make every check of one wrong kernel."""
    failed: list[str] = []
    for name, family in FAMILIES.items():
        for dtype in DTYPES:
            # Anew for each: some remember what they were given.
            with pytest.MonkeyPatch.context() as patch:
                subject = mutant.build(patch)
                try:
                    checks = family(subject, dtype)
                except Exception:  # torch has no one class for what a wrong operator meets
                    failed.append(f"{said(dtype)}: {name} {RAISED}")
                    continue
            failed += [
                one.name.removeprefix(f"{subject.name} ") for one in checks if not one.passed
            ]
    return Row(mutant, tuple(dict.fromkeys(failed)))


def walk(mutants: Iterable[Mutant], say: Callable[[str], None]) -> list[Row]:
    """All of them, one after the other."""
    rows = []
    for mutant in mutants:
        say(f"kernel: {mutant.name}")
        rows.append(measured(mutant))
    return rows


def columns(rows: Iterable[Row]) -> list[str]:
    """What checks ask, of those that said no at least once."""
    return list(dict.fromkeys(part(name) for row in rows for name in row.failed))


def render(rows: list[Row]) -> str:
    """The matrix as Markdown: f where float32's check said no, b where bfloat16's did."""
    asked = columns(rows)
    numbers = range(1, len(asked) + 1)
    lines = [f"{number}. {what}" for number, what in zip(numbers, asked, strict=True)]
    lines += ["", f"| wrong kernel | {' | '.join(map(str, numbers))} |"]
    lines.append(f"|---|{'---|' * len(asked)}")
    for row in rows:
        cells = (row.dtypes(what) or "." for what in asked)
        lines.append(f"| {row.mutant.name} | {' | '.join(cells)} |")
    missed = [row.mutant.name for row in rows if not row.caught]
    lines += ["", f"{len(rows) - len(missed)} of {len(rows)} found by the check meant for them"]
    lines += [f"MISSED: {name}" for name in missed]
    return "\n".join(lines) + "\n"


def as_json(rows: list[Row]) -> str:
    """The same for a machine."""
    found = [
        {"mutant": row.mutant.name, "stands_for": row.mutant.stands_for, "failed": row.failed}
        | {"meant": row.mutant.check, "caught": row.caught}
        for row in rows
    ]
    return json.dumps(found, indent=2) + "\n"
