"""Every stage judged again over its records, and what came out held against its verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trn_validate.distances import Apart, Comparison
from trn_validate.errors import EvidenceError
from trn_validate.observed import JUDGED
from trn_validate.review.recorded import Recorded
from trn_validate.review.replay import RecordedRun, left, replay
from trn_validate.verdict import Verdict

SPEC = "spec.json"
"""What a launch was told, in its folder; judging again compares it with what the stage asks."""

_CLOSE = 1e-6
"""Relative; three norms of one comparison are each rounded on their own, in float64."""
_ROUNDING = 1e-13
"""Relative to the reference's norm: a factor near 1 is not known better."""


@dataclass(kw_only=True)
class Rejudged:
    """What judging again came to."""

    checks: int = 0
    differences: list[str] = field(default_factory=list)
    not_recomputed: list[str] = field(default_factory=list)


def rejudge(recorded: Recorded, scratch: Path) -> Rejudged:
    """Judge every stage of a run that has a verdict; nothing is written but to ``scratch``."""
    found = Rejudged()
    run = RecordedRun(recorded.folder, recorded.name, scratch)
    earlier: dict[str, Verdict] = {}
    for stage in recorded.stages:
        verdict = recorded.verdicts.get(stage.id)
        if verdict is None:
            found.differences += [f"{stage.id}: it is in the plan and has no verdict"]
            continue
        if verdict.blocked_by is None:
            replayed = replay(
                stage,
                verdict,
                plan=recorded.plan,
                run=run,
                earlier=dict(earlier),
                choice=recorded.choice,
            )
            if not replayed.why_not:
                found.checks += len(verdict.checks)
                found.differences += differing(verdict, replayed.fields)
                found.differences += [
                    f"{stage.id}: {name} is not what the stage asks" for name in replayed.differing
                ]
                found.differences += [
                    f"{stage.id}: launch {name} is on record and the stage does not ask for it"
                    for name in replayed.unused
                ]
            elif verdict.unmeasured:
                found.not_recomputed.append(f"{stage.id}: it ended before it measured")
            else:
                found.differences.append(f"{stage.id}: cannot be judged again: {replayed.why_not}")
            _norms(recorded.folder, verdict, found)
        elif verdict.checks or verdict.blocked_by not in earlier:
            found.differences.append(f"{stage.id}: not what a blocked stage says")
        earlier[stage.id] = verdict
    return found


def differing(verdict: Verdict, fields: Mapping[str, Any]) -> Iterator[str]:
    """Each field of a verdict that is not what judging again gives, check by check."""
    again = json.loads(verdict.model_copy(update=dict(fields)).model_dump_json())
    stated = json.loads(verdict.to_json())
    for name in fields:
        if name == "checks":
            yield from _checks(verdict.stage, stated[name], again[name])
        elif json.dumps(stated[name]) != json.dumps(again[name]):
            where = _where(stated[name], again[name])
            yield f"{verdict.stage}: {name} is not what its records give{where}"


def _checks(stage: str, stated: list[dict[str, Any]], again: list[dict[str, Any]]) -> Iterator[str]:
    ours, theirs = ({check["name"]: check for check in side} for side in (again, stated))
    for name in dict.fromkeys((*ours, *theirs)):
        if name not in theirs:
            yield f"{stage}: check {name!r} is missing"
        elif name not in ours:
            yield f"{stage}: check {name!r} is not one that its records give"
        elif theirs[name] != ours[name]:
            keys = [key for key in ours[name] if ours[name][key] != theirs[name].get(key)]
            what = ", ".join(f"{k} {theirs[name].get(k)!r}, not {ours[name][k]!r}" for k in keys)
            yield f"{stage}: check {name!r} says {what}"
    if len(stated) != len(theirs) or [c["name"] for c in stated] != [c["name"] for c in again]:
        yield f"{stage}: its checks are not those of its records, or in another order"


def _where(one: object, other: object) -> str:
    """Which entries of two mappings differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [k for k in dict.fromkeys((*one, *other)) if one.get(k) != other.get(k)]
        return f": {', '.join(keys[:3])}" if keys else ", or in another order"
    return ""


def _norms(folder: Path, verdict: Verdict, found: Rejudged) -> None:
    """Whether the kept norms of each comparison can belong together."""
    try:
        seen, norms = left(folder, verdict)
    except EvidenceError:
        return  # told where the stage is judged
    found.not_recomputed += [
        f"{verdict.stage}: {name}" for name in seen.seen if name.startswith(JUDGED)
    ]
    for comparison in norms.comparisons:
        if sketched(folder / comparison.candidate):
            # The norm of the reference is that of the whole tensor, the others are of sketches.
            continue
        odd = next((one.name for one in comparison.tensors if not possible(one)), None)
        if odd is not None:
            found.differences.append(
                f"{verdict.stage}: the norms of {odd} in {_pair(comparison)} cannot belong together"
            )


def sketched(launch: Path) -> bool:
    """Whether a launch kept sketches of its tensors, by what it was told."""
    try:
        return bool(json.loads((launch / SPEC).read_bytes())["capture"] == "sketch")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _pair(comparison: Comparison) -> str:
    return f"{comparison.candidate} against {comparison.reference} ({comparison.of})"


def possible(one: Apart) -> bool:
    """Whether the norms are those of two tensors.

    With r the reference and f the factor that brings it closest to the other, what is left is at
    right angles to r: |difference|^2 = |rest|^2 + (f - 1)^2 |r|^2.
    """
    numbers = (one.reference, one.difference, one.factor, one.rest)
    if one.reference is None or not all(n is not None and math.isfinite(n) for n in numbers):
        return True
    other = math.hypot(one.rest, (one.factor - 1.0) * one.reference)
    return abs(one.difference - other) <= _CLOSE * one.difference + _ROUNDING * one.reference
