"""Runs side by side: stacks, plans, layouts, losses, gradients, speed and memory.

The first run is what the others are held against. Where two runs cannot be compared, the reason
is named and no numbers of theirs stand beside each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from trn_validate.errors import UsageError
from trn_validate.paths import write_atomic
from trn_validate.review.archive import opened
from trn_validate.review.beside import Beside
from trn_validate.review.cells import Table
from trn_validate.review.comparable import obstacles
from trn_validate.review.material import Material, load
from trn_validate.review.templates import render
from trn_validate.stage import StagesOf


@dataclass(frozen=True)
class Comparison:
    """What there is to say of several runs."""

    runs: tuple[str, ...]
    not_comparable: tuple[str, ...]
    """Each run and stage that cannot be held against the first run's, and why."""
    tables: tuple[Table, ...]


def show_comparison(
    folders: Sequence[Path],
    stages_of: StagesOf,
    *,
    html: Path | None = None,
    as_json: bool = False,
    as_text: bool = False,
) -> int:
    """Print the comparison, as Markdown unless only a page or JSON is asked for; gives 0.

    Raises:
        UsageError: fewer than two runs, or one that is no run folder.
        EvidenceError: a plan or a verdict cannot be read, or an archive is damaged.
        FolderError: the page cannot be written.
    """
    if len(folders) < 2:
        raise UsageError(
            "a comparison takes two runs or more", todo="Name their folders or bundles."
        )
    with ExitStack() as stack:
        # An archive is unpacked for so long; what is no file is for the reader to refuse.
        runs = [stack.enter_context(opened(f)) if f.is_file() else f for f in folders]
        found = compare([load(run, stages_of) for run in runs])
    if html is not None:
        write_atomic(html, render("compare.html", found=found).encode("utf-8"))
    if as_json:
        print(json.dumps(as_data(found), indent=2))
    elif as_text or html is None:
        print(as_markdown(found))
    else:
        print(html)
    return 0


def compare(materials: Sequence[Material]) -> Comparison:
    """Hold every run against the first."""
    names = _names(materials)
    stages = list(dict.fromkeys(v.stage for m in materials for v in m.verdicts if v.layout))
    reasons = {
        (name, stage): obstacles(materials[0], material, stage)
        for name, material in zip(names[1:], materials[1:], strict=True)
        for stage in stages
    }
    # One reason usually holds for many stages.
    by_reason: dict[str, list[str]] = {}
    for (name, stage), found in reasons.items():
        for reason in found:
            by_reason.setdefault(f"{name}: {reason}", []).append(stage)
    apart = frozenset(key for key, found in reasons.items() if found)
    beside = Beside(materials, names, stages, apart)
    return Comparison(
        runs=names,
        not_comparable=tuple(f"{r} ({', '.join(s)})" for r, s in by_reason.items()),
        tables=tuple(beside.tables()),
    )


def _names(materials: Sequence[Material]) -> tuple[str, ...]:
    """Names by which the runs are told apart, also where one is given twice."""
    seen: dict[str, int] = {}
    names = []
    for material in materials:
        seen[material.run] = seen.get(material.run, 0) + 1
        nth = seen[material.run]
        names.append(material.run if nth == 1 else f"{material.run} ({nth})")
    return tuple(names)


def as_data(found: Comparison) -> dict[str, object]:
    """For a machine: every table with its header."""
    return {
        "runs": list(found.runs),
        "not_comparable": list(found.not_comparable),
        "tables": [
            {key: value for key, value in asdict(table).items() if key != "bad"}
            for table in found.tables
        ],
    }


def as_markdown(found: Comparison) -> str:
    """For a terminal or a pull request."""
    lines = [f"# {' against '.join(reversed(found.runs))}", "", "## Not comparable", ""]
    lines += [f"- {line}" for line in found.not_comparable] or ["Nothing: all of it is."]
    for table in found.tables:
        lines += ["", f"## {table.caption}", ""]
        rows = (table.header, ("---",) * len(table.header), *table.rows) if table.rows else ()
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows] or ["No data."]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
