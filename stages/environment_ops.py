"""Do single operations and their gradients agree with the CPU, on the device?

Each runs in a process of its own, so that one that hangs or crashes costs only itself. What is
equally wrong in every layout of a ladder is found here or nowhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from trn_validate.base import larger
from trn_validate.check import Check, none_found
from trn_validate.config import Plan
from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.launch_neuron import equipped
from trn_validate.launching import log_path
from trn_validate.operation import (
    EXACT,
    OPERATIONS,
    Compare,
    OperationAnswer,
    OperationSpec,
)
from trn_validate.paths import make_folder, write_atomic
from trn_validate.stage import Context, Family, Findings, Place, Stage
from trn_validate.torchrun import threads
from trn_validate.verdict import Capability, Problem

MODULE = "trn_validate.workload.ops"
LARGEST, NORM = 5.0, 3.0
"""Errors of the device in those of the CPU: largest, and L2 norm. Limits that are in use on Neuron
for results in bfloat16 held against float32 (vllm-omni on Neuron, by a user's report)."""
_LEAST = 2
"""Tensors of an answer that is whole: one for each of two seeds."""

_ENDED, _REFUSED, _DEVICE, _COUNT = "ended", "errors raised", "device", "tensors compared"
_LARGEST, _NORM, _DIFFER = "largest error", "error norm", "elements that differ"
_DEGENERATE, _FALLBACKS = "degenerate results", "fallbacks to the CPU"


@dataclass(frozen=True)
class OpsStage:
    """The stage, of all operations or of some."""

    id: str = "environment.ops"
    asks: str = "do single operations and their gradients agree with the CPU, on the device?"
    operations: tuple[str, ...] = OPERATIONS

    def reads(self, plan: Plan) -> object:
        """The device."""
        return {"profile": plan.profile.model_dump(), "operations": self.operations}

    def external(self, plan: Plan) -> dict[str, str]:
        """Nothing."""
        return {}

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """One process for each operation."""
        return tuple(_request(place.plan, place.private, name) for name in self.operations)

    def run(self, context: Context) -> Findings:
        """Ask for one operation after the other, and judge each."""
        expects = (f"{n}: {part}" for n in self.operations for part in _parts(n))
        findings = Findings(expects=tuple(expects))
        place = Place(plan=context.plan, private=context.attempt.private, seed=Path())
        for name, request in zip(self.operations, self.launches(place), strict=True):
            _write_spec(context.plan, request, name)
            context.say(f"launching {name}")
            device = context.plan.profile.device
            result = context.launcher.launch(equipped(device, context.run.private, 1, request))
            answer = read_answer(request)
            context.note(result)
            _judge(context, findings, name, result, answer)
        if failed := next((check for check in findings.checks if not check.passed), None):
            findings.problem = findings.problem or Problem(cause="operation", what=str(failed))
        return findings


def _parts(name: str) -> tuple[str, ...]:
    errors = () if name in EXACT else (_LARGEST, _NORM)
    return (_ENDED, _REFUSED, _DEVICE, _COUNT, *errors, _DIFFER, _DEGENERATE)


def _request(plan: Plan, private: Path, name: str) -> LaunchRequest:
    folder = private / name.replace(" ", "-")
    return LaunchRequest(
        name=name,
        argv=(sys.executable, "-m", MODULE, "--spec", str(folder / "spec.json")),
        folder=folder,
        env={"OMP_NUM_THREADS": str(threads(1))},
        wall_seconds=plan.timeouts.wall,
        # An operation says nothing on its way; a step of training may take as long.
        silence_seconds=float(plan.timeouts.train),
        grace_seconds=plan.timeouts.grace,
    )


def _write_spec(plan: Plan, request: LaunchRequest, name: str) -> None:
    spec = OperationSpec(
        name=request.name,
        operation=name,
        answer=str(_answer_file(request)),
        device=plan.profile.device,
    )
    make_folder(request.folder)
    write_atomic(request.folder / "spec.json", (spec.model_dump_json(indent=2) + "\n").encode())


def _answer_file(request: LaunchRequest) -> Path:
    return request.folder / "answer.json"


def read_answer(request: LaunchRequest) -> OperationAnswer | None:
    """The answer of a process; None where it left none that is whole."""
    try:
        text = _answer_file(request).read_text(encoding="utf-8")
        return OperationAnswer.model_validate_json(text)
    except (OSError, ValidationError):
        return None


def _judge(
    context: Context,
    findings: Findings,
    name: str,
    result: LaunchResult,
    answer: OperationAnswer | None,
) -> None:
    """Add the checks of one operation, and its row of the table."""
    # A process that crashes on its way out has answered.
    ended = Cause.COMPLETED if answer is not None else result.cause
    if answer is None and ended.usable:
        ended = Cause.CRASH
    checks = [_check(name, _ENDED, ended.value, "==", Cause.COMPLETED.value, result.what)]
    if answer is not None:
        context.pids.add(answer.pid)
        context.hooks.update(answer.hooks)
        findings.versions |= answer.versions
        if findings.device in ("none", context.plan.profile.device):
            findings.device = answer.device
        checks += _answer_checks(context.plan, name, answer)
        if not answer.asked:
            findings.facts["fallbacks"] = "nobody could be asked what ran on the CPU"
    elif findings.problem is None:
        findings.problem = Problem(
            cause=ended.value,
            what=f"{name}: {result.what or ended.phrase}",
            log=log_path(context, result),
            excerpt=result.excerpt,
        )
    findings.checks += checks
    findings.capabilities.append(_capability(name, checks, ended, answer))


def _answer_checks(plan: Plan, name: str, answer: OperationAnswer) -> list[Check]:
    refused = none_found(f"{name}: {_REFUSED}", int(bool(answer.refused)), answer.refused)
    if answer.refused:
        return [refused]
    compared = answer.compared
    bad = [one for one in compared if one.degenerate]
    differing = [one for one in compared if one.differing]
    checks = [
        refused,
        _check(name, _DEVICE, answer.device, "==", plan.profile.device),
        _check(name, _COUNT, len(compared), ">=", _LEAST),
    ]
    if name not in EXACT:
        checks += [
            _worst(name, _LARGEST, LARGEST, {one.what: one.largest for one in compared}),
            _worst(name, _NORM, NORM, {one.what: one.norm for one in compared}),
        ]
    total = sum(one.differing for one in differing)
    checks += [
        none_found(f"{name}: {_DIFFER}", total, ", ".join(one.what for one in differing)),
        none_found(f"{name}: {_DEGENERATE}", len(bad), ", ".join(map(_said, bad))),
    ]
    if answer.asked:
        found = ", ".join(answer.fallbacks)
        checks.append(none_found(f"{name}: {_FALLBACKS}", len(answer.fallbacks), found))
    return checks


def _said(one: Compare) -> str:
    return f"{one.what} is {one.degenerate}"


def _check(
    name: str,
    part: str,
    measured: int | float | str,
    comparator: str,
    limit: object,
    detail: str = "",
) -> Check:
    return Check.model_validate(
        {
            "name": f"{name}: {part}",
            "measured": measured,
            "comparator": comparator,
            "limit": limit,
            "source": "config" if part in (_DEVICE, _LARGEST, _NORM) else "derived",
            "unit": "errors of the CPU" if part in (_LARGEST, _NORM) else "",
            "detail": detail,
        }
    )


def _worst(name: str, part: str, limit: float, errors: dict[str, float]) -> Check:
    """The largest of the errors and whose it is; NaN is larger than all."""
    worst, where = 0.0, ""
    for what, error in errors.items():
        if larger(worst, error) is error or not where:
            worst, where = error, what
    return _check(name, part, worst, "<=", limit, where)


def _capability(
    name: str, checks: list[Check], ended: Cause, answer: OperationAnswer | None
) -> Capability:
    state, failed = "right", next((check for check in checks if not check.passed), None)
    if answer is None:
        state = "hung" if ended in (Cause.HANG, Cause.TIMEOUT) else "crashed"
    elif answer.refused:
        state = "refused"
    elif failed is not None:
        state = "wrong"
    return Capability.model_validate(
        {
            "operation": name,
            "processes": 1,
            "state": state,
            "detail": "" if failed is None else str(failed),
            "seconds": answer.seconds if answer else 0.0,
        }
    )


def members(plan: Plan) -> tuple[Stage, ...]:
    """One stage on an accelerator; the CPU has nothing to be compared with."""
    return (OpsStage(),) if plan.profile.device != "cpu" else ()


FAMILY = Family("environment.ops", OpsStage.asks, members)
