"""Judging a recorded stage again: its own code, over what it recorded, and nothing is launched.

The stage runs as it did. Its launches are answered from how they ended, with the records that
the ranks left; its looks at the host from what it saw; its comparisons of tensors from the norms
that were kept. What comes out is computed, and has to be what the verdict says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trn_validate import distances, observed
from trn_validate.answer import measure
from trn_validate.attempt import Attempt
from trn_validate.config import Plan
from trn_validate.distances import Distances, Told, read_distances
from trn_validate.errors import EvidenceError
from trn_validate.execute import FIRST, found_fields
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.observed import Observed, Remembering, read_observed
from trn_validate.run import Run
from trn_validate.stage import Context, Findings, Stage
from trn_validate.target import Choice
from trn_validate.verdict import Artifact, Verdict

if TYPE_CHECKING:
    from trn_validate.neuron.watch import Watch

_TOLD = (".json",)
"""What a stage writes for its launch, which has to be what was written then."""


class RecordedRun(Run):
    """A run folder that is only read, wherever it is; what a stage writes goes to ``scratch``."""

    def __init__(self, folder: Path, name: str, scratch: Path) -> None:
        super().__init__(scratch, name, scratch)
        self.folder = folder

    def verify(self, artifact: Artifact) -> Path:
        """Give the path: the manifest answers for what is there, and tensors may be left out."""
        return self.folder / artifact.path

    def recorded(self, verdict: Verdict) -> Attempt:
        """The attempt that a verdict is of."""
        place = f"{verdict.stage}/{verdict.attempt}"
        return _Recorded(verdict.stage, verdict.attempt, self.folder / place, self.private / place)


class _Recorded(Attempt):
    """An attempt whose files were moved into the run folder when it was made."""

    def adopt(self, source: Path, name: str) -> str:
        """The relative name; nothing is moved."""
        return f"{self.relative}/{name}"


class _Launches:
    """Answers a launch with how it ended, and lays the records that it left where it left them."""

    def __init__(self, attempt: Attempt, known: Observed) -> None:
        self.attempt = attempt
        self.known = {one.name: one for one in known.launches}
        self.differing: list[str] = []
        """Files by which a launch was told what to do, and that say something else now."""

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """See :meth:`trn_validate.launch.Launcher.launch`.

        Raises:
            EvidenceError: no such launch is on record.
        """
        if request.name not in self.known:
            raise EvidenceError(
                f"no launch {request.name} is on record", where=self.attempt.relative
            )
        request.folder.mkdir(parents=True, exist_ok=True)
        kept = self.attempt.folder / request.folder.relative_to(self.attempt.private)
        for path in kept.iterdir() if kept.is_dir() else ():
            told = request.folder / path.name
            if not told.exists():
                told.symlink_to(path)
            elif path.suffix in _TOLD and not _alike(told, path):
                self.differing.append(f"{self.attempt.relative}/{kept.name}/{path.name}")
        recorded = self.known[request.name]
        if not _same(list(request.argv[1:]), list(recorded.argv[1:])):
            self.differing.append(f"{self.attempt.relative}: arguments of {request.name}")
        return recorded.result(self.attempt.private)

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """See :meth:`trn_validate.launch.Launcher.together`."""
        return tuple(self.launch(request) for request in requests)


def _alike(one: Path, other: Path) -> bool:
    try:
        return _same(json.loads(one.read_bytes()), json.loads(other.read_bytes()))
    except (OSError, ValueError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Whether two structures are the same but for the folders that their paths are in."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, str) and isinstance(other, str) and "/" in one and "/" in other:
        return one.rpartition("/")[2] == other.rpartition("/")[2]
    return type(one) is type(other) and bool(one == other)


@dataclass(frozen=True)
class Replayed:
    """What judging a stage again came to."""

    fields: Mapping[str, Any]
    """Of the verdict, as :func:`trn_validate.execute.found_fields` gives them."""
    why_not: str = ""
    """Why it could not be judged again."""
    differing: tuple[str, ...] = ()
    """Files by which a launch was told what to do, and that say something else now."""
    unused: tuple[str, ...] = ()
    """Launches that are on record and that the stage did not ask for."""


def left(folder: Path, verdict: Verdict) -> tuple[Observed, Distances]:
    """What a stage left beside its records; nothing where its verdict names no such file.

    Raises:
        EvidenceError: a file that is named cannot be read.
    """
    place = f"{verdict.stage}/{verdict.attempt}"
    named = {artifact.path for artifact in verdict.artifacts}
    seen, norms = f"{place}/{observed.NAME}", f"{place}/{distances.NAME}"
    return (
        read_observed(folder / seen) if seen in named else Observed(),
        read_distances(folder / norms) if norms in named else Distances(),
    )


def replay(
    stage: Stage,
    verdict: Verdict,
    *,
    plan: Plan,
    run: RecordedRun,
    earlier: Mapping[str, Verdict],
    choice: Choice,
) -> Replayed:
    """Judge one stage again."""
    attempt = run.recorded(verdict)
    try:
        seen, norms = left(run.folder, verdict)
        launches = _Launches(attempt, seen)
        context = Context(
            plan=plan,
            stage=stage.id,
            run=run,
            attempt=attempt,
            launcher=launches,
            choice=choice,
            earlier=earlier,
            say=lambda text: None,
            meter=Told(norms),
            observer=Remembering(seen),
        )
        answer = measure(_judging(plan, stage), context)
    except EvidenceError as error:
        return Replayed({}, why_not=str(error))
    asked = {result.name for result in context.ended}
    fields = found_fields(answer, context)
    return Replayed(
        {name: value for name, value in fields.items() if name != "artifacts"},
        differing=tuple(launches.differing),
        unused=tuple(name for name in launches.known if name not in asked),
    )


def _judging(plan: Plan, stage: Stage) -> Callable[[Context], Findings]:
    """How the stage measured: on a neuron plan the counts of the device belong to it."""
    if plan.profile.device != "neuron" or stage.id == FIRST:
        return stage.run
    from trn_validate.neuron import watch

    return partial(watch.watched, stage.run, watching=_blind)


def _blind(root: Path) -> Watch:
    """A watch that looks at nothing, since what it would say is on record."""
    from trn_validate.neuron.watch import Watch

    class Blind(Watch):
        def __enter__(self) -> Blind:
            return self

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            return

    return Blind(root)
