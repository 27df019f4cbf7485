"""ctrf.json: the run in the Common Test Report Format (ctrf.io, schema/ctrf.schema.json).

A test is a stage or one of its checks; a check takes no time of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from trn_validate.gate import Standing
from trn_validate.review.summary import decision
from trn_validate.verdict import Outcome, Verdict

NAME = "ctrf.json"
SPEC_VERSION = "0.0.0"
"""That of the published schema, which has not counted a version yet."""

_STATUS = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "failed",
    Outcome.ERROR: "failed",
    Outcome.BLOCKED: "skipped",
    Outcome.UNSUPPORTED: "other",
}
_COUNTED = ("passed", "failed", "pending", "skipped", "other")


def render(run: str, standings: Sequence[Standing]) -> str:
    """The file's text."""
    tests = [test for standing in standings for test in _tests(standing)]
    counts = Counter(test["status"] for test in tests)
    times = [_milliseconds(s.verdict) for s in standings if s.verdict is not None]
    report = {
        "reportFormat": "CTRF",
        "specVersion": SPEC_VERSION,
        "runId": run,
        "generatedBy": "trn-validate",
        "results": {
            "tool": {"name": "trn-validate"},
            "summary": {
                "tests": len(tests),
                **{name: counts[name] for name in _COUNTED},
                "start": min((begin for begin, _ in times), default=0),
                "stop": max((end for _, end in times), default=0),
            },
            "tests": tests,
            "extra": {"decision": decision(standings)},
        },
    }
    return json.dumps(report, indent=1) + "\n"


def _tests(standing: Standing) -> Iterator[dict[str, Any]]:
    verdict, name = standing.verdict, standing.stage.id
    if verdict is None:
        yield _test(name, name, "pending", message="no verdict")
        return
    begin, end = _milliseconds(verdict)
    yield _test(
        name,
        name,
        _STATUS[verdict.outcome],
        duration=end - begin,
        message=why(verdict),
        raw=verdict.outcome.value,
    )
    for check in verdict.checks:
        status = "passed" if check.passed else "failed"
        yield _test(name, check.name, status, message="" if check.passed else str(check))
    for missing in verdict.missing:
        yield _test(name, missing, "failed", message="owed and not made")


def why(verdict: Verdict) -> str:
    """Why a stage did not pass, in one line; empty where it did."""
    if verdict.outcome is Outcome.PASSED:
        return ""
    if verdict.blocked_by is not None:
        return f"{verdict.blocked_by} did not pass"
    if verdict.unsupported is not None:
        return verdict.unsupported
    if verdict.problem is not None:
        return f"{verdict.problem.cause}: {verdict.problem.what}"
    return "; ".join(map(str, verdict.failed_checks)) or verdict.outcome.phrase


def _test(
    stage: str, name: str, status: str, *, duration: int = 0, message: str = "", raw: str = ""
) -> dict[str, Any]:
    test: dict[str, Any] = {"name": name, "status": status, "duration": duration, "suite": [stage]}
    if message:
        test["message"] = message
    if raw:
        test["rawStatus"] = raw
    return test


def _milliseconds(verdict: Verdict) -> tuple[int, int]:
    """When the stage began and ended, since the epoch; 0 where its time is none."""
    try:
        begin = int(datetime.fromisoformat(verdict.started_at).timestamp() * 1000)
    except ValueError:
        begin = 0
    return begin, begin + round(verdict.seconds * 1000)
