"""One stage's answer, and the rules by which it may say ``passed``.

Nothing here takes an outcome from a caller. A :class:`Check` computes whether it
holds from its numbers, a :class:`Verdict` computes its outcome from its checks,
and reading a verdict back recomputes both and refuses a file that says otherwise.
"""

import hashlib
import json
from enum import StrEnum
from typing import Literal

from pydantic import Field, ValidationError, computed_field

from trn_validate.base import Real, Record
from trn_validate.check import Check
from trn_validate.errors import EvidenceError
from trn_validate.parts import (
    Artifact,
    Capability,
    Command,
    Compared,
    Execution,
    Host,
    Layout,
    Problem,
    Seat,
    Sha256,
    Thing,
)

__all__ = [
    "SCHEMA_VERSION",
    "Artifact",
    "Capability",
    "Command",
    "Compared",
    "Execution",
    "Host",
    "Layout",
    "Outcome",
    "Problem",
    "Seat",
    "Sha256",
    "Thing",
    "Verdict",
    "digest",
]

SCHEMA_VERSION: Literal["1"] = "1"


class Outcome(StrEnum):
    """What a stage answered, with the sentence that explains the word."""

    PASSED = "passed", "every check holds"
    FAILED = "failed", "a check said no"
    ERROR = "error", "the stage could not measure"
    BLOCKED = "blocked", "an earlier stage did not pass"
    UNSUPPORTED = "unsupported", "the vendor documents it as absent, or a probe found it so"

    phrase: str

    def __new__(cls, value: str, phrase: str) -> "Outcome":
        """Make a member that carries its phrase."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.phrase = phrase
        return member


class Verdict(Record):
    """One stage's answer. ``outcome`` is computed from everything else."""

    schema_version: Literal["1"] = SCHEMA_VERSION
    stage: str
    path: str
    run: str
    attempt: int
    host: Host
    device: str
    """Device type on which the stage's tensors really were; ``none`` where no torch ran.

    With ``(rehearsal)`` after it where another package than the vendor's executed.
    """
    execution: Execution | None = None
    expects: tuple[str, ...] = ()
    """Names of the checks that this stage owes; one that is missing is not a pass."""
    checks: tuple[Check, ...] = ()
    compared: tuple[Compared, ...] = ()
    layout: Layout | None = None
    measures: dict[str, Real] = Field(default_factory=dict)
    """Single figures that no check judges: tokens_per_second, peak_memory_bytes and the like."""
    series: dict[str, tuple[Real, ...]] = Field(default_factory=dict)
    """Figures per step at full precision."""
    capabilities: tuple[Capability, ...] = ()
    """What each probed operation came to."""
    facts: dict[str, str] = Field(default_factory=dict)
    """What was found and is not a number."""
    versions: dict[str, str] = Field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    hooks: tuple[str, ...] = ()
    """Hooks of the test suite that were active; with any, this is never evidence."""
    problem: Problem | None = None
    """Where to look: set on ``error``, and on ``failed`` where a place is known."""
    unmeasured: bool = False
    """The stage ended before it could measure what it asks."""
    blocked_by: str | None = None
    unsupported: str | None = None
    """The reason, where the vendor documents it as absent or a probe found it so."""
    rerun: str = ""
    """Exact command that reruns this stage."""
    started_at: str
    """UTC, ISO 8601."""
    seconds: float
    launch_seconds: float = 0.0
    """Part of ``seconds`` during which a launch of the stage was alive."""
    builds_on: dict[str, Sha256] = Field(default_factory=dict)
    """sha256 of the verdict file of every earlier stage."""
    inputs: dict[str, Sha256] = Field(default_factory=dict)
    """Digests of the parts of ``inputs_sha256``: plan, code, environment, external."""
    inputs_sha256: Sha256

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of checks that are owed and absent."""
        present = {check.name for check in self.checks}
        return tuple(name for name in self.expects if name not in present)

    @property
    def failed_checks(self) -> tuple[Check, ...]:
        """Checks that said no, in the order in which they were made."""
        return tuple(check for check in self.checks if not check.passed)

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated property
    @property
    def outcome(self) -> Outcome:
        """Computed from the checks; a stage that proves nothing has not passed."""
        if self.blocked_by is not None:
            return Outcome.BLOCKED
        if self.unsupported is not None:
            return Outcome.UNSUPPORTED
        if self.unmeasured:
            return Outcome.ERROR
        if self.failed_checks:
            return Outcome.FAILED
        if not self.checks or not self.expects or self.missing or _alike(self.compared):
            return Outcome.ERROR
        return Outcome.PASSED

    def to_json(self) -> str:
        """The file's text; equal verdicts give equal texts."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> "Verdict":
        """Read a verdict that says of itself what its numbers say.

        Raises:
            EvidenceError: not a verdict, another schema version, or a file whose stated
                outcome or checks differ from what its numbers give.
        """
        todo = "Restore the file, or rerun the stage."
        try:
            stated = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise EvidenceError(f"not JSON ({error})", where=where, todo=todo) from None
        if not isinstance(stated, dict) or stated.get("schema_version") != SCHEMA_VERSION:
            raise EvidenceError(
                f"not a verdict of schema version {SCHEMA_VERSION}", where=where, todo=todo
            )
        try:
            verdict = cls.model_validate_json(json.dumps(_without_computed(stated)))
        except (ValidationError, RecursionError, ValueError) as error:
            raise EvidenceError(
                f"not a verdict ({_first(error)})", where=where, todo=todo
            ) from None
        # Compared as texts, since True == 1 and 1 == 1.0.
        if _canonical(json.loads(verdict.to_json())) != _canonical(stated):
            raise EvidenceError(
                f"the file says other than its numbers do (they give {verdict.outcome})",
                where=where,
                todo=todo,
            )
        return verdict


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object with no key given twice, of which readers take different ones."""
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _without_computed(stated: dict[str, object]) -> dict[str, object]:
    rest = {key: value for key, value in stated.items() if key != "outcome"}
    checks = rest.get("checks")
    if isinstance(checks, list):
        rest["checks"] = [
            {k: v for k, v in check.items() if k != "passed"} if isinstance(check, dict) else check
            for check in checks
        ]
    return rest


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def _alike(compared: tuple[Compared, ...]) -> bool:
    """Whether any comparison held a thing against itself."""
    return any(
        set(pair.reference.processes) & set(pair.candidate.processes)
        or not pair.reference.processes
        or not pair.candidate.processes
        or (pair.differ != "processes" and pair.reference.attempt == pair.candidate.attempt)
        or (
            pair.differ in ("layout", "implementation")
            and pair.reference.layout == pair.candidate.layout
        )
        for pair in compared
    )


def digest(text: str) -> str:
    """sha256 of a verdict file's text, by which later stages name it."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
