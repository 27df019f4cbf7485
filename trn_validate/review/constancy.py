"""What the verdicts of one run have to agree on, and what follows from one for the next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

from trn_validate.freshness import CODE, ENVIRONMENT, EXTERNAL, PLAN, canonical, inputs_digest
from trn_validate.paths import text_digest
from trn_validate.rerun import rerun_command
from trn_validate.review.recorded import Recorded
from trn_validate.review.replay import RecordedRun
from trn_validate.session import ENVIRONMENT as ENVIRONMENT_FILE
from trn_validate.verdict import Verdict

_SECOND = 1.0
"""Starts are written in whole seconds."""


def constant(recorded: Recorded) -> Iterator[str]:
    """Every disagreement between the verdicts of a run, its plan and its environment."""
    known = {stage.id for stage in recorded.stages}
    for name, verdict in recorded.verdicts.items():
        if name not in known:
            yield f"{name}: a verdict that the plan has no stage for"
        elif verdict.path != recorded.plan.path:
            yield f"{name}: it is of path {verdict.path}, the plan of {recorded.plan.path}"
    verdicts = [v for s in recorded.stages if (v := recorded.verdicts.get(s.id)) is not None]
    for standing in recorded.standings:
        if standing.verdict is not None and not standing.freshness.fresh:
            yield f"{standing.stage.id}: {standing.freshness}"
    yield from _shared(verdicts)
    yield from _environment(recorded, verdicts)
    yield from _hosts(recorded, verdicts)
    yield from _times(recorded, verdicts)
    yield from _reruns(recorded, verdicts)


def _shared(verdicts: list[Verdict]) -> Iterator[str]:
    """The code, the environment and what is named from outside are the same throughout."""
    first: dict[str, tuple[str, str]] = {}
    for verdict in verdicts:
        if not {PLAN, CODE, ENVIRONMENT} <= verdict.inputs.keys():
            yield f"{verdict.stage}: its inputs lack a part"
        if verdict.inputs_sha256 != inputs_digest(verdict.inputs, verdict.builds_on):
            yield f"{verdict.stage}: its inputs_sha256 does not fit its own parts"
        for name, digest in verdict.inputs.items():
            if name not in (CODE, ENVIRONMENT) and not name.startswith(EXTERNAL):
                continue
            stage, other = first.setdefault(name, (verdict.stage, digest))
            if other != digest:
                yield f"{verdict.stage}: its {name} is another than that of {stage}"


def _environment(recorded: Recorded, verdicts: list[Verdict]) -> Iterator[str]:
    """The fingerprint in the folder is the one that the verdicts were made under."""
    try:
        text = (recorded.folder / ENVIRONMENT_FILE).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError):
        yield f"{ENVIRONMENT_FILE}: it is missing or is no JSON"
        return
    if "<" in text:  # redacted: its digest is another than the original's
        return
    digest = text_digest(canonical(found))
    for verdict in verdicts:
        if verdict.inputs.get(ENVIRONMENT) not in (None, digest):
            yield f"{verdict.stage}: it was made in another environment than {ENVIRONMENT_FILE}"


def _hosts(recorded: Recorded, verdicts: list[Verdict]) -> Iterator[str]:
    """Every stage names the target of the plan, and the signs that environment.device saw."""
    choice = recorded.choice
    seen = (choice.signs.host_root, choice.signs.trn2_functions, choice.reason or choice.refusal)
    for verdict in verdicts:
        host = verdict.host
        if host.target != recorded.plan.target:
            yield f"{verdict.stage}: its target is {host.target}, the plan's {recorded.plan.target}"
        if (host.root, host.trn2_functions, host.reason) != seen:
            yield f"{verdict.stage}: its host is not the one that environment.device saw"


def _times(recorded: Recorded, verdicts: list[Verdict]) -> Iterator[str]:
    """A stage begins when the one before it has ended, and its launches fit into its time."""
    over = _run_start(recorded.name)
    for verdict in verdicts:
        try:
            begin = datetime.fromisoformat(verdict.started_at).timestamp()
        except ValueError:
            yield f"{verdict.stage}: {verdict.started_at!r} is no time"
            continue
        if not verdict.launch_seconds <= verdict.seconds:
            yield f"{verdict.stage}: its launches took longer than it did"
        if over is not None and begin + _SECOND < over:
            yield f"{verdict.stage}: it began before what it builds on had ended"
        over = max(over or begin, begin + verdict.seconds)


def _run_start(name: str) -> float | None:
    for part in name.split("."):
        try:
            stamp = datetime.strptime(part.partition("-")[0], "%Y%m%dT%H%M%SZ")
        except ValueError:
            continue
        return stamp.replace(tzinfo=UTC).timestamp()
    return None


def _reruns(recorded: Recorded, verdicts: list[Verdict]) -> Iterator[str]:
    """The command that reruns a stage follows from the plan, but for the folder of the runs."""
    run = RecordedRun(recorded.folder, recorded.name, recorded.folder)
    for verdict in verdicts:
        asked = verdict.blocked_by or verdict.stage
        if _without_reports(verdict.rerun) != _without_reports(
            rerun_command(recorded.plan, run, asked)
        ):
            yield f"{verdict.stage}: its rerun command is not that of the plan"


def _without_reports(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:
        return [command]
    if "--reports" in words:
        place = words.index("--reports")
        del words[place : place + 2]
    return words
