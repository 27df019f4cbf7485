"""The tables of a comparison of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trn_validate.review.cells import GRAD_NORM, GRADIENT, LOSS, PARAMETERS, Table, deviation
from trn_validate.review.comparable import bearing, identity
from trn_validate.review.material import Material
from trn_validate.review.summary import decision
from trn_validate.stack import stack_of
from trn_validate.verdict import Verdict

_ABSENT = "-"
APART = "not comparable"


@dataclass(frozen=True)
class Beside:
    """The numbers of several runs, each beside the first's."""

    materials: Sequence[Material]
    names: tuple[str, ...]
    """By which the runs are told apart."""
    stages: Sequence[str]
    apart: frozenset[tuple[str, str]]
    """Runs and stages that cannot be compared."""

    def tables(self) -> Iterator[Table]:
        """What the runs are, then what they measured."""
        yield self._table("Runs", "of the run", self._runs())
        yield self._table("Stacks", "package", self._stacks(), differing=True)
        yield self._table("Plans", "of the plan", self._plans(), differing=True)
        layouts = [(s, [_layout(m.verdict(s)) for m in self.materials]) for s in self.stages]
        yield self._table("Layouts", "stage", layouts, differing=True)
        yield self._table("Loss at each step", "stage and step", self._series("loss"))
        yield self._table("Gradient norm at each step", "stage and step", self._series("grad_norm"))
        for title, kind in (
            ("Loss", LOSS),
            ("Gradient norm", GRAD_NORM),
            ("Gradient of step 1", GRADIENT),
            ("Parameters after the last step", PARAMETERS),
        ):
            caption = f"{title}: deviation from each run's own reference (limit)"
            yield self._table(caption, "stage", self._by_stage(_of_kind(kind)))
        yield self._table("Tokens per second", "stage", self._measures("tokens_per_second"))
        yield self._table("Seconds of a step", "stage", self._measures("step_seconds"))
        yield self._table("Peak memory, bytes", "stage", self._measures("peak_memory_bytes"))

    def _table(
        self,
        caption: str,
        first: str,
        rows: Sequence[tuple[str, Sequence[str]]],
        *,
        differing: bool = False,
    ) -> Table:
        """``differing`` adds a column that says whether the runs differ there."""
        header = (first, *self.names, *(("differs",) if differing else ()))
        made = tuple(
            (name, *cells, *(("yes" if len(set(cells)) > 1 else "no",) if differing else ()))
            for name, cells in rows
        )
        return Table(header, made, caption)

    def _runs(self) -> list[tuple[str, list[str]]]:
        return [
            ("decision", [decision(m.standings) for m in self.materials]),
            ("target", [m.plan.target for m in self.materials]),
            ("path", [m.plan.path for m in self.materials]),
            ("nodes", [str(m.plan.nodes) for m in self.materials]),
            (
                "begun",
                [min((v.started_at for v in m.verdicts), default="-") for m in self.materials],
            ),
        ]

    def _stacks(self) -> list[tuple[str, list[str]]]:
        return _aligned([dict(m.environment) | stack_of(m.verdicts) for m in self.materials])

    def _plans(self) -> list[tuple[str, list[str]]]:
        plans = [
            {
                f"{ladder.name}: {name}": value
                for ladder in m.plan.ladders
                for name, value in (identity(ladder) | bearing(ladder)).items()
            }
            for m in self.materials
        ]
        return _aligned(plans)

    def _by_stage(self, cell: Callable[[Verdict], str]) -> list[tuple[str, list[str]]]:
        rows = []
        for stage in self.stages:
            cells = []
            for name, material in zip(self.names, self.materials, strict=True):
                verdict = material.verdict(stage)
                text = cell(verdict) if verdict else _ABSENT
                cells.append(APART if (name, stage) in self.apart else text)
            rows.append((stage, cells))
        return rows

    def _measures(self, name: str) -> list[tuple[str, list[str]]]:
        return [
            (
                stage,
                self._against(stage, [_measure(m, stage, name) for m in self.materials], _ratio),
            )
            for stage in self.stages
        ]

    def _series(self, name: str) -> list[tuple[str, list[str]]]:
        rows = []
        for stage in self.stages:
            series = [_steps(m.verdict(stage), name) for m in self.materials]
            for step in range(max(map(len, series))):
                values = [s[step] if step < len(s) else None for s in series]
                cells = self._against(stage, values, _difference)
                rows.append((f"{stage}, {step + 1}", cells))
        return rows

    def _against(
        self,
        stage: str,
        values: Sequence[float | None],
        apart: Callable[[float, float], str],
    ) -> list[str]:
        """Each run's value, and for all but the first how far it is from the first's."""
        first, cells = values[0], []
        for place, (name, value) in enumerate(zip(self.names, values, strict=True)):
            if (name, stage) in self.apart:
                cells.append(APART)
            elif value is None:
                cells.append(_ABSENT)
            elif place == 0 or first is None:
                cells.append(f"{value:.9g}")
            else:
                cells.append(f"{value:.9g} ({apart(first, value)})")
        return cells


def _aligned(sides: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for side in sides for name in side)
    return [(name, [side.get(name, _ABSENT) for side in sides]) for name in names]


def _layout(verdict: Verdict | None) -> str:
    layout = verdict.layout if verdict else None
    if layout is None:
        return _ABSENT
    over = f" over {layout.nodes} nodes" if layout.nodes > 1 else ""
    return f"{layout.degrees}{over}, batch {layout.local_batch_size} x {layout.accumulation}"


def _of_kind(kind: str) -> Callable[[Verdict], str]:
    return lambda verdict: deviation(verdict, kind)


def _steps(verdict: Verdict | None, name: str) -> tuple[float, ...]:
    return verdict.series.get(name, ()) if verdict else ()


def _measure(material: Material, stage: str, name: str) -> float | None:
    verdict = material.verdict(stage)
    return verdict.measures.get(name) if verdict else None


def _difference(first: float, value: float) -> str:
    return f"{value - first:+.2e}"


def _ratio(first: float, value: float) -> str:
    return f"x {value / first:.3f}" if first else f"x {math.inf}"
