"""A run as its folder alone shows it: plan, verdicts, and how each stage stands by them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from trn_validate.config import Plan
from trn_validate.errors import ConfigError, EvidenceError
from trn_validate.freshness import PLAN, Freshness, Inputs, State, canonical, inputs_digest
from trn_validate.gate import Standing, opens
from trn_validate.observed import read_observed
from trn_validate.paths import text_digest
from trn_validate.run import PLAN as PLAN_FILE
from trn_validate.stage import Stage, StagesOf
from trn_validate.target import Choice, Signs, choose
from trn_validate.verdict import Verdict
from trn_validate.verdict_folder import VerdictFolder

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Recorded:
    """All that a run folder says of its run."""

    folder: Path
    name: str
    plan: Plan
    stages: tuple[Stage, ...]
    verdicts: Mapping[str, Verdict]
    digests: Mapping[str, str]
    """sha256 of each verdict's file."""
    problems: tuple[str, ...]
    """Verdicts that cannot be read, and why."""

    @cached_property
    def choice(self) -> Choice:
        """How the target was chosen, as environment.device saw it; a host with no sign if not."""
        verdict = self.verdicts.get("environment.device")
        if verdict is None:
            return choose(Signs())
        place = f"{verdict.stage}/{verdict.attempt}/observed.json"
        try:
            seen = read_observed(self.folder / place).seen["choice"]
            return TypeAdapter(Choice).validate_json(json.dumps(seen))
        except (EvidenceError, KeyError, ValidationError):
            return choose(Signs())

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """How every stage stands by what the folder holds: the code and the machine are not asked.

        A stage is stale where a verdict that it builds on, or its part of the plan, is another.
        """
        found: list[Standing] = []
        for stage in self.stages:
            verdict = self.verdicts.get(stage.id)
            builds_on = {s.stage.id: s.digest for s in found if s.digest is not None}
            parts = dict(verdict.inputs) if verdict else {}
            if verdict and is_whole(self.plan):
                parts[PLAN] = text_digest(canonical(stage.reads(self.plan)))
            state = _state(verdict, Inputs(parts, builds_on))
            found.append(
                Standing(
                    stage,
                    verdict,
                    self.digests.get(stage.id),
                    Inputs(parts, builds_on),
                    state,
                    verdict is not None and state.fresh and opens(self.plan, verdict),
                )
            )
        return tuple(found)


def _state(verdict: Verdict | None, expected: Inputs) -> Freshness:
    if verdict is None:
        return Freshness(State.ABSENT)
    other = [
        name
        for name in dict.fromkeys((*expected.builds_on, *verdict.builds_on))
        if expected.builds_on.get(name) != verdict.builds_on.get(name)
    ]
    changed = [PLAN] if expected.parts.get(PLAN) != verdict.inputs.get(PLAN) else []
    changed += [f"verdict of {name}" for name in other]
    if changed:
        return Freshness(State.STALE, f"changed: {', '.join(changed)}")
    if verdict.inputs_sha256 != inputs_digest(verdict.inputs, verdict.builds_on):
        return Freshness(State.STALE, "its inputs_sha256 does not fit its own parts")
    return Freshness(State.FRESH)


def is_whole(plan: Plan) -> bool:
    """Whether nothing in the plan was redacted, so that digests of its parts are as they were."""
    return "<" not in plan.model_dump_json()


def read_recorded(folder: Path, stages_of: StagesOf) -> Recorded:
    """Read a run folder; a verdict that cannot be read is told, not raised.

    Raises:
        EvidenceError: the folder holds no run, or its plan cannot hold.
    """
    plan = read_plan(folder)
    stages = tuple(stages_of(plan))
    named = _names(folder, stages)
    if not named:
        raise EvidenceError("no run: there is no verdict in it", where=str(folder))
    name = max(sorted(set(named)), key=named.count)
    verdicts, digests, problems = {}, {}, []
    source = VerdictFolder(folder, name)
    for stage in dict.fromkeys((*(s.id for s in stages), *source.stages_present())):
        try:
            entry = source.read_with_digest(stage)
        except EvidenceError as error:
            problems.append(f"{stage}.json: {error.what}")
            continue
        if entry is not None:
            verdicts[stage], digests[stage] = entry
    return Recorded(folder, name, plan, stages, verdicts, digests, tuple(problems))


def read_plan(folder: Path) -> Plan:
    """The plan that is in the folder, redacted as it is.

    Raises:
        EvidenceError: there is none, or it cannot hold.
    """
    path = folder / PLAN_FILE
    try:
        raw: Any = yaml.load(path.read_bytes(), _LOADER)
        return Plan.model_validate_json(json.dumps(raw))
    except FileNotFoundError:
        raise EvidenceError("no run: there is no plan.yaml in it", where=str(folder)) from None
    except (OSError, yaml.YAMLError, ValidationError, ConfigError, TypeError, ValueError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise EvidenceError(f"not a plan of a run ({first})", where=PLAN_FILE) from None


def _names(folder: Path, stages: Sequence[Stage]) -> list[str]:
    """The run that each verdict says it is of."""
    found = []
    for stage in stages:
        try:
            stated = json.loads((folder / f"{stage.id}.json").read_bytes())
            found.append(str(stated["run"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found
