"""The control run again with other signs: how much the noise itself varies on this machine.

A limit follows from one control. Whether that one is typical is asked here, of the reference
that a run already has; no verdict is written and none becomes stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from trn_validate.accepted import load_reference, stage_of_reference
from trn_validate.commands import gate_of, verdicts_of
from trn_validate.control import CONTROL, MEASURES, noise_from, tolerance_of
from trn_validate.errors import EvidenceError
from trn_validate.gate import Standing
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.launchers import launcher_of
from trn_validate.launching import launch
from trn_validate.parity import Noise, Tolerance
from trn_validate.paths import write_atomic
from trn_validate.progress import Progress
from trn_validate.reference import control_spec
from trn_validate.run import Run
from trn_validate.session import REPORTS, choose_plan, fingerprint_now, newest
from trn_validate.stage import Context, StagesOf
from trn_validate.store import Store

FOLDER = "calibrate.control"
"""Folder of the run that the launches are kept in."""


@dataclass(frozen=True)
class Spread:
    """One figure over several controls."""

    figure: str
    floor: float
    ceiling: float
    used: float
    """What the verdict's own control showed."""
    least: float
    median: float
    most: float
    limit: float
    """The limit that the verdict's control gives."""

    @property
    def quiet(self) -> bool:
        """Whether every control stayed below the ceiling and within the limit."""
        return self.most < self.ceiling and self.most <= self.limit


def calibrate(context: Context, rung: ResolvedRung, repeats: int) -> tuple[Spread, ...]:
    """Run the control of a ladder's first rung with ``repeats`` other seeds of its signs.

    Raises:
        Unmeasured: a launch failed.
        EvidenceError: the reference is missing, or not what its verdict says.
    """
    reference = load_reference(context, rung.ladder.name)
    ours = reference.yardstick
    noises: list[Noise] = []
    # The verdict's control has the signs of seed 1. Two one-process runs share the cores.
    abreast = 2 if rung.degrees.world_size == 1 else 1
    seeds = range(2, repeats + 2)
    for first in range(0, repeats, abreast):
        specs = [
            control_spec(
                context.plan,
                rung,
                context.attempt.private,
                reference.seed,
                name=f"{CONTROL}-{seed}",
                signs=seed,
            )
            for seed in seeds[first : first + abreast]
        ]
        trials = launch(context, specs)
        noises += [noise_from(ours.steps, ours.kept, trial) for trial in trials]
    tolerance = tolerance_of(context.plan, rung.ladder.workload.compute_dtype, ours.noise)
    return tuple(_spread(figure, tolerance, noises) for figure in MEASURES)


def _spread(figure: str, tolerance: Tolerance, noises: Sequence[Noise]) -> Spread:
    basis = tolerance.basis(figure)
    values = [getattr(noise, figure) for noise in noises]
    return Spread(
        figure=figure,
        floor=basis.floor,
        ceiling=basis.ceiling,
        used=basis.control,
        least=min(values),
        median=median(values),
        most=max(values),
        limit=basis.limit,
    )


def show_calibration(
    stages_of: StagesOf,
    config: Path | None,
    model_path: str,
    settings: Iterable[str],
    repeats: int,
    *,
    reports: Path | None = None,
    as_json: bool = False,
) -> int:
    """Repeat the control of every ladder of the newest run; 1 where a limit would not have held.

    Raises:
        EvidenceError: the run has no fresh reference.
        MeasurementError: a launch failed.
    """
    chosen = choose_plan(config, model_path, settings)
    plan = chosen.plan
    run = newest(Store(reports or REPORTS), plan)
    progress = Progress(len(plan.ladders), quiet=as_json)
    with run.lock():
        standings = gate_of(stages_of, plan, run, fingerprint_now()).standings()
        found: dict[str, tuple[Spread, ...]] = {}
        for ladder in plan.ladders:
            _require_fresh(standings, stage_of_reference(plan, ladder.name), run)
            attempt = run.new_attempt(FOLDER)
            context = Context(
                plan=plan,
                stage=FOLDER,
                run=run,
                attempt=attempt,
                launcher=launcher_of(plan),
                choice=chosen.choice,
                earlier=verdicts_of(standings),
                say=progress.say,
            )
            with progress.stage(f"{FOLDER} {ladder.name}", f"how do {repeats} controls spread?"):
                found[ladder.name] = calibrate(context, resolve(ladder)[0], repeats)
            run.publish(attempt)
            told = _json({ladder.name: found[ladder.name]})
            write_atomic(attempt.folder / "spread.json", told.encode())
    if as_json:
        print(_json(found))
    else:
        for line in _table(found, repeats):
            print(line)
    return 0 if all(s.quiet for spreads in found.values() for s in spreads) else 1


def _json(found: Mapping[str, Sequence[Spread]]) -> str:
    spreads = {ladder: [asdict(spread) for spread in all_] for ladder, all_ in found.items()}
    return json.dumps(spreads, indent=2)


def _require_fresh(standings: Sequence[Standing], stage: str, run: Run) -> None:
    standing = next(s for s in standings if s.stage.id == stage)
    if not standing.opens:
        raise EvidenceError(
            f"{stage} has no fresh verdict that passed, so there is no reference to calibrate by",
            where=run.name,
            todo="Run make validate first.",
        )


def _table(found: Mapping[str, Sequence[Spread]], repeats: int) -> Iterator[str]:
    head = ("figure", "floor", "ceiling", "control", "least", "median", "most", "limit")
    for name, spreads in found.items():
        yield f"ladder {name}: {repeats} controls with other signs"
        yield f"{head[0]:<20}" + "".join(f"{word:>11}" for word in head[1:])
        for s in spreads:
            row = (s.floor, s.ceiling, s.used, s.least, s.median, s.most, s.limit)
            quiet = "" if s.quiet else "  over"
            yield f"{s.figure:<20}" + "".join(f"{value:>11.2e}" for value in row) + quiet
