"""Running every seeded defect through the product's own stages, in a few minutes.

Each stage runs once without a defect and has to pass. Then it runs once for each defect, with
the hook in the launches that the defect names, and its verdict says which checks said no. At the
end of each group of ranks its layouts run once more without a defect, and have to give the same
bits as the first time: nothing leaked from one job into another.

One process uses one core, and several ranks wait for each other: so the stages of one process
and those of several are walked side by side, once the reference is there.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path

from stages.parallelism import members
from tests.defects.catalogue import DEFECTS
from tests.defects.defect import Defect
from tests.defects.found import Findings
from tests.defects.micro import ENVIRONMENT, micro_plan, micro_stages
from tests.defects.walk import Walk
from trn_validate.ladder import ResolvedRung
from trn_validate.run import Run
from trn_validate.session import start
from trn_validate.stage import Stage
from trn_validate.store import Store

BASELINE = "baseline.eager"
_BINARY = (".distcp", ".safetensors")


def walk(folder: Path, say: Callable[[str], None], defects: Iterable[Defect] = DEFECTS) -> Findings:
    """Run everything in an empty folder; the ranks are ended whatever happens.

    Raises:
        MeasurementError: a stage does not pass without a defect.
    """
    chosen, began = tuple(defects), time.monotonic()
    plan, found, stopped = micro_plan(folder), Findings(), threading.Event()
    run = start(Store(folder / "reports"), plan, ENVIRONMENT)
    asked = {BASELINE, *(defect.stage for defect in chosen)}
    stages = [stage for stage in micro_stages(plan) if stage.id in asked]
    one = Walk(folder / "one", plan, run, found, say, stopped)
    try:
        one.clean(stages[0])
        other = Walk(folder / "several", plan, copied(run, folder), found, say, stopped)
        other.adopt(stages[0])
        rungs = {stage.id for stage in members(plan)}
        sides = (
            (one, [s for s in stages if s.id not in rungs], _family),
            (other, [s for s in stages if s.id in rungs], _ranks),
        )
        with ThreadPoolExecutor(len(sides)) as pool:
            futures = [pool.submit(_side, *side, chosen) for side in sides]
            try:
                # The first that fails says why; the other one then ends because of it.
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                stopped.set()
                raise
    finally:
        one.launcher.stop()
    order = {defect.name: place for place, defect in enumerate(chosen)}
    found.defects.sort(key=lambda finding: order[finding.defect.name])
    found.seconds = time.monotonic() - began
    return found


def _side(
    own: Walk, stages: Sequence[Stage], key: Callable[[Stage], object], defects: Sequence[Defect]
) -> None:
    for _, batch in groupby(stages, key):
        own.batch(tuple(batch), defects)


def _family(stage: Stage) -> object:
    return stage.id.partition(".")[0]


def _ranks(stage: Stage) -> object:
    rung: ResolvedRung = getattr(stage, "rung")  # noqa: B009  # every member of the family has it
    return rung.degrees.world_size


def copied(run: Run, folder: Path) -> Run:
    """A copy of a run for a walk of its own; what is no text is linked."""

    def copy(source: str, target: str) -> None:
        if source.endswith(_BINARY):
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    target = folder / "reports-several"
    shutil.copytree(folder / "reports", target, copy_function=copy)
    return next(r for r in Store(target).runs() if r.name == run.name)
