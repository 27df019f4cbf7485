"""Whether a verdict still answers for the plan, code and machine as they are now.

A stage's inputs are named part by part, so that what is stale says why; the digest of
them all is computed from the digests of the parts, so that a reader of the verdict alone
can compute it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trn_validate.errors import MeasurementError
from trn_validate.hashes import Hashes
from trn_validate.paths import files_below, text_digest
from trn_validate.sources import ABSENT
from trn_validate.verdict import Artifact, Verdict

PLAN, CODE, ENVIRONMENT, EXTERNAL = "plan", "code", "environment", "external:"


class State(StrEnum):
    """How a stage's verdict stands to the present; computed, never stored."""

    FRESH = "fresh"
    ABSENT = "absent"
    STALE = "stale"


@dataclass(frozen=True)
class Freshness:
    """How a stage's verdict stands to the present, and why."""

    state: State
    reason: str = ""

    @property
    def fresh(self) -> bool:
        """Whether the verdict may be reused."""
        return self.state is State.FRESH

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else str(self.state)


@dataclass(frozen=True)
class Inputs:
    """Digests of all that a stage's answer depends on."""

    parts: dict[str, str]
    """plan, code, environment, and external:NAME for each thing named from outside."""
    builds_on: dict[str, str]
    """sha256 of the verdict file of every earlier stage."""

    @property
    def sha256(self) -> str:
        """Digest of them all."""
        return inputs_digest(self.parts, self.builds_on)


def inputs(
    plan_part: object,
    code: str,
    environment: Mapping[str, str],
    builds_on: Mapping[str, str],
    external: Mapping[str, str],
) -> Inputs:
    """Take the digests of what a stage's answer depends on.

    ``external`` holds, by name, the digest (or ``absent``) of each thing that the plan
    names from outside: modules, data files, weights, entries of a table.
    """
    parts = {
        PLAN: text_digest(canonical(plan_part)),
        CODE: code,
        ENVIRONMENT: text_digest(canonical(dict(environment))),
    }
    parts |= {f"{EXTERNAL}{name}": text_digest(found) for name, found in external.items()}
    return Inputs(parts, dict(builds_on))


def inputs_digest(parts: Mapping[str, str], builds_on: Mapping[str, str]) -> str:
    """The digest that a verdict with these ``inputs`` and ``builds_on`` has to state."""
    return text_digest(canonical({"parts": dict(parts), "builds_on": dict(builds_on)}))


def canonical(value: object) -> str:
    """The one JSON text of a value.

    Raises:
        ValueError: a number is not finite.
        TypeError: a key is no text, or a value has no place in JSON.
    """
    return json.dumps(
        _plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        for key in value:
            # json would write 1 and "1" alike.
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is no text")
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


def outside_digest(path: Path, hashes: Hashes) -> str:
    """Digest of a file, or of every file in a folder with its name, or ``absent``.

    ``hashes`` remembers them by absolute path, as :attr:`Store.outside` does.

    Raises:
        MeasurementError: a file cannot be read, or changes while it is read.
    """
    path = path.absolute()
    try:
        files = files_below(path, links=True) if path.is_dir() else [path]
    except OSError as error:
        raise MeasurementError(f"cannot be read ({error.strerror})", where=str(path)) from error
    if not files or not all(file.exists() for file in files):
        return ABSENT
    names = {str(file.relative_to(hashes.folder)): file for file in files}
    found = hashes.recall(names)
    if path.is_file():
        return next(iter(found.values()))
    return text_digest(canonical({str(names[n].relative_to(path)): d for n, d in found.items()}))


def freshness(
    verdict: Verdict | None, expected: Inputs, unchanged: Callable[[Artifact], bool]
) -> Freshness:
    """How a stage's verdict stands to the present; see :func:`judge`."""
    if verdict is None:
        return Freshness(State.ABSENT)
    reason = judge(verdict, expected, unchanged)
    return Freshness(State.STALE, reason) if reason else Freshness(State.FRESH)


def judge(verdict: Verdict, expected: Inputs, unchanged: Callable[[Artifact], bool]) -> str:
    """Why a verdict is stale, every changed part by name; empty where it is fresh.

    ``unchanged`` tells whether an artifact is still what the verdict says.
    """
    changed = [_say_part(name) for name in _changed(verdict.inputs, expected.parts)]
    changed += [f"verdict of {name}" for name in _changed(verdict.builds_on, expected.builds_on)]
    if changed:
        return f"changed: {', '.join(changed)}"
    if verdict.inputs_sha256 != expected.sha256:
        return "its inputs_sha256 does not fit its own parts"
    for artifact in verdict.artifacts:
        if not unchanged(artifact):
            return f"missing or changed: artifact {artifact.path}"
    return ""


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names that one of the two lacks or that differ, in the present order."""
    names = dict.fromkeys((*now, *before))
    return [name for name in names if before.get(name) != now.get(name)]


def _say_part(name: str) -> str:
    return f"external {name.removeprefix(EXTERNAL)}" if name.startswith(EXTERNAL) else name
