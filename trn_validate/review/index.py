"""index.html of a folder of runs: by time, with decision, stack, and how key numbers drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trn_validate.errors import EvidenceError, UsageError
from trn_validate.paths import write_atomic
from trn_validate.review import svg
from trn_validate.review.cells import Table
from trn_validate.review.comparable import obstacles
from trn_validate.review.margins import used
from trn_validate.review.material import Material, load
from trn_validate.review.page import NAME as PAGE
from trn_validate.review.plots import Plot
from trn_validate.review.summary import decision
from trn_validate.review.templates import render
from trn_validate.stage import StagesOf
from trn_validate.store import Store

NAME = "index.html"
EAGER = "baseline.eager"
_STACK = ("torch", "torchtitan", "torch-neuronx", "torchtitan-neuron", "neuronx-cc", "nki")
_NUMBERS = ("last loss", "tokens/s", "peak GiB")


@dataclass(frozen=True)
class Entry:
    """One run of the index."""

    name: str
    link: str
    """Its page, relative to the index; empty where it has none."""
    decision: str
    stack: str
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Runs of one target, path and number of nodes, the newest first."""

    title: str
    entries: tuple[Entry, ...]
    header: tuple[str, ...]
    plot: Plot | None


def write_index(root: Path, stages_of: StagesOf) -> int:
    """Write the index of a folder of runs and print where it is; the status is 0.

    Raises:
        UsageError: there is no such folder.
        FolderError: it could not be read or written.
    """
    if not root.is_dir():
        raise UsageError("there is no such folder", where=str(root))
    found, unread = _read(root, stages_of)
    groups = tuple(_groups(root, found))
    text = render("index.html", groups=groups, unread=unread)
    write_atomic(root / NAME, text.encode("utf-8"))
    print(root / NAME)
    return 0


def _read(root: Path, stages_of: StagesOf) -> tuple[list[Material], list[str]]:
    """Every run that can be read, the oldest first, and why the others cannot."""
    found, unread = [], []
    for run in reversed(Store(root).runs()):
        try:
            found.append(load(run.folder, stages_of, records=False))
        except (EvidenceError, UsageError) as error:
            unread.append(str(error).replace(f"{root.absolute()}/", ""))
    return found, unread


def _groups(root: Path, found: Sequence[Material]) -> Iterator[Group]:
    for title in dict.fromkeys(map(_title, found)):
        runs = [m for m in found if _title(m) == title]
        before: list[Material | None] = [None, *runs[:-1]]
        entries = [_entry(root, m, b) for m, b in zip(runs, before, strict=True)]
        header = ("run", "decision", "stack", *_NUMBERS, "most of a gradient limit used", "seconds")
        yield Group(title, tuple(reversed(entries)), header, _plot(title, runs))


def _title(material: Material) -> str:
    plan = material.plan
    over = f", {plan.nodes} nodes" if plan.nodes > 1 else ""
    return f"{plan.target}, {plan.path}{over}"


def _entry(root: Path, material: Material, before: Material | None) -> Entry:
    link = f"{material.run}/{PAGE}"
    versions: dict[str, str] = {}
    for verdict in material.verdicts:
        versions |= verdict.versions
    alike = before is not None and not obstacles(before, material, EAGER)
    old = _numbers(before) if before is not None and alike else (None,) * len(_NUMBERS)
    numbers = (_drift(now, was) for now, was in zip(_numbers(material), old, strict=True))
    return Entry(
        name=material.run,
        link=link if (root / link).is_file() else "",
        decision=decision(material.standings),
        stack=", ".join(f"{n} {versions[n]}" for n in _STACK if n in versions) or "-",
        numbers=(
            *numbers,
            _gradients(material),
            f"{sum(v.seconds for v in material.verdicts):.0f}",
        ),
    )


def _numbers(material: Material) -> tuple[float | None, ...]:
    """The key numbers of the first ladder's reference."""
    verdict = material.verdict(EAGER)
    if verdict is None:
        return (None,) * len(_NUMBERS)
    loss, peak = verdict.series.get("loss"), verdict.measures.get("peak_memory_bytes")
    return (
        loss[-1] if loss else None,
        verdict.measures.get("tokens_per_second"),
        peak / 2**30 if peak is not None else None,
    )


_MOST = 0.99
"""Largest change that is told as a percentage; a larger one is told as a factor."""


def _drift(now: float | None, was: float | None) -> str:
    if now is None:
        return "-"
    if not was:
        return f"{now:.6g}"
    ratio = now / was
    # A percentage in two digits of so large a change would be written with an exponent.
    drift = f"{100 * (ratio - 1):+.2g} %" if abs(ratio - 1) < _MOST else f"x {ratio:.3g}"
    return f"{now:.6g} ({drift})"


def _gradients(material: Material) -> str:
    parts = [
        part
        for verdict in material.verdicts
        for check in verdict.checks
        if check.name.endswith(": gradient of step 1") and (part := used(check)) is not None
    ]
    return f"{100 * max(parts):.3g} %" if parts else "-"


def _plot(title: str, runs: Sequence[Material]) -> Plot | None:
    """Key numbers over those of the first run that has them, of comparable runs alone."""
    whole = [m for m in runs if None not in _numbers(m)]
    alike = [m for m in whole if not obstacles(whole[0], m, EAGER)]
    if len(alike) < 2:
        return None
    table = [[value or 0.0 for value in _numbers(m)] for m in alike]
    series = [
        svg.Series(name, tuple((n, row[c] / table[0][c]) for n, row in enumerate(table, 1)), c + 1)
        for c, name in enumerate(_NUMBERS)
        if table[0][c]
    ]
    return Plot(
        title=f"Drift of {title}",
        reads="Key numbers of baseline.eager over those of the first comparable run.",
        drawing=svg.lines(f"drift of {title}", series, across="run, the oldest first", log=False),
        table=Table(
            ("run", *_NUMBERS),
            tuple(
                (m.run, *(f"{value:.6g}" for value in row))
                for m, row in zip(alike, table, strict=True)
            ),
            "Key numbers of comparable runs",
        ),
        legend=tuple((svg.key(one.style), one.name) for one in series),
    )
