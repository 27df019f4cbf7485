"""All that a page is made from, read from a run folder or an unpacked bundle of one.

Nothing outside of the folder is asked: not the clock, not this machine, not this checkout. So the
same folder gives the same page anywhere, and a reviewer can make it again and compare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from trn_validate import yaml_file
from trn_validate.config import Plan
from trn_validate.distances import NAME as DISTANCES
from trn_validate.distances import Comparison, read_distances
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.freshness import CODE, ENVIRONMENT, Inputs, freshness
from trn_validate.gate import Standing, opens
from trn_validate.review.figures import LaunchFigures, read_launch
from trn_validate.run import PLAN
from trn_validate.session import ENVIRONMENT as FINGERPRINT
from trn_validate.stage import Stage, StagesOf
from trn_validate.vendor_record import VendorRecord, newest_record
from trn_validate.verdict import Verdict
from trn_validate.verdict_folder import VerdictFolder

_NO_TRAINING = "environment."
"""Stages of this kind leave records of other kinds, which have no steps."""


@dataclass(frozen=True)
class Material:
    """One run, as its folder tells it."""

    run: str
    plan: Plan
    standings: tuple[Standing, ...]
    """How each stage stands by the folder alone."""
    launches: tuple[LaunchFigures, ...] = ()
    """Of the attempts whose verdicts stand, in the order in which they were started."""
    distances: tuple[Comparison, ...] = ()
    vendor: VendorRecord | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """The fingerprint of the machine."""
    unread: tuple[str, ...] = ()
    """What was there and could not be read."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Those that are there, in gate order."""
        return tuple(s.verdict for s in self.standings if s.verdict is not None)

    def verdict(self, stage: str) -> Verdict | None:
        """The verdict of a stage, if it is there."""
        return next((v for v in self.verdicts if v.stage == stage), None)

    def launch(self, place: str) -> LaunchFigures | None:
        """The launch at ``<stage>/<attempt>/<launch>``, if it left records."""
        return next((one for one in self.launches if one.place == place), None)


def load(folder: Path, stages_of: StagesOf, *, records: bool = True) -> Material:
    """Read a run folder; without ``records`` only what its verdicts say.

    Raises:
        UsageError: it is no run folder.
        EvidenceError: its plan or a verdict cannot be read.
    """
    if not folder.is_dir():
        raise UsageError("there is no such folder", where=str(folder))
    plan = read_plan(folder)
    # A bundle may be unpacked under any name; its verdicts know the run's.
    name = run_name(folder)
    standings = standings_in(VerdictFolder(folder, name), plan, stages_of(plan))
    verdicts = [s.verdict for s in standings if s.verdict is not None]
    unread: list[str] = []
    return Material(
        run=name,
        plan=plan,
        standings=standings,
        launches=tuple(_launches(folder, verdicts, unread)) if records else (),
        distances=tuple(_distances(folder, verdicts, unread)) if records else (),
        vendor=newest_record(folder),
        environment=read_environment(folder),
        unread=tuple(unread),
    )


def read_plan(folder: Path) -> Plan:
    """The plan in its redacted form.

    Raises:
        UsageError: there is none, so this is no run folder.
        EvidenceError: it is not a plan of this version.
    """
    path = folder / PLAN
    if not path.is_file():
        raise UsageError(f"not a run folder: it has no {PLAN}", where=str(folder))
    try:
        return Plan.model_validate_json(json.dumps(yaml_file.read(path)))
    except (UsageError, ValidationError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise EvidenceError(
            f"not a plan of this version ({what})",
            where=str(path),
            todo="Read it with the version that made it.",
        ) from None


def read_environment(folder: Path) -> dict[str, str]:
    """The fingerprint that the run was started with; empty where it cannot be read."""
    try:
        found = json.loads((folder / FINGERPRINT).read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def run_name(folder: Path) -> str:
    """The run that the verdicts in a folder say they belong to; without any, its own name."""
    verdicts = VerdictFolder(folder, folder.name)
    for stage in verdicts.stages_present():
        try:
            return str(json.loads(verdicts.verdict_path(stage).read_bytes())["run"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return folder.name


def standings_in(
    folder: VerdictFolder, plan: Plan, stages: Sequence[Stage]
) -> tuple[Standing, ...]:
    """How every stage stands by the verdicts alone.

    A verdict is stale here where an earlier one was replaced after it, or where it was made by
    other sources or on another machine than the newest. Whether sources or machine have changed
    since that one, the folder cannot tell.

    Raises:
        EvidenceError: a verdict cannot be read, or is another run's.
    """
    entries = [(stage, folder.read_with_digest(stage.id)) for stage in stages]
    made = [entry[0] for _, entry in entries if entry is not None]
    newest = max(made, key=lambda verdict: verdict.started_at, default=None)
    found: list[Standing] = []
    for stage, entry in entries:
        verdict, digest = entry if entry is not None else (None, None)
        earlier = {s.stage.id: s.digest for s in found if s.digest is not None}
        expected = _expected(verdict, newest, earlier)
        state = freshness(verdict, expected, lambda artifact: True)
        opened = verdict is not None and state.fresh and opens(plan, verdict)
        found.append(Standing(stage, verdict, digest, expected, state, opened))
    return tuple(found)


def _expected(verdict: Verdict | None, newest: Verdict | None, earlier: dict[str, str]) -> Inputs:
    parts = dict(verdict.inputs) if verdict else {}
    if newest is not None:
        parts |= {k: newest.inputs[k] for k in (CODE, ENVIRONMENT) if k in newest.inputs}
    return Inputs(parts, earlier)


def _launches(
    folder: Path, verdicts: Iterable[Verdict], unread: list[str]
) -> Iterator[LaunchFigures]:
    for verdict in verdicts:
        if verdict.stage.startswith(_NO_TRAINING):
            continue
        for command in verdict.commands:
            place = f"{verdict.stage}/{verdict.attempt}/{command.name}"
            try:
                found = read_launch(
                    folder / place / "records", verdict.stage, verdict.attempt, command.name
                )
            except EvidenceError as error:
                unread.append(_without(folder, error))
                continue
            if found is not None:
                yield found


def _distances(
    folder: Path, verdicts: Iterable[Verdict], unread: list[str]
) -> Iterator[Comparison]:
    for verdict in verdicts:
        path = folder / verdict.stage / str(verdict.attempt) / DISTANCES
        if not path.exists():
            continue
        try:
            yield from read_distances(path).comparisons
        except EvidenceError as error:
            unread.append(_without(folder, error))


def _without(folder: Path, error: EvidenceError) -> str:
    """What could not be read; a page names no place of the machine that made it."""
    return str(error).replace(f"{folder}/", "")
