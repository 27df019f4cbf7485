from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import check, compared, host, verdict
from tests.fake_training import Stub, holding
from trn_validate.evidence import evidence
from trn_validate.freshness import Freshness, Inputs, State
from trn_validate.gate import Standing
from trn_validate.review.summary import (
    closing_lines,
    decision,
    failure_lines,
    shown,
    standing_lines,
)
from trn_validate.verdict import Execution, Outcome, Problem

DEVICE, IMPORTS, FSDP = "environment.device", "environment.imports", "parallelism.fsdp"
NEURONX = Execution(distribution="torch-neuronx 2.9.0", before=3, after=40)
FRESH = Freshness(State.FRESH)


def standing(
    stage: str, freshness: Freshness = FRESH, *, opens: bool | None = None, **changes: Any
) -> Standing:
    """How a stage stands whose verdict differs so from a passed one on a Trn2."""
    made = verdict(stage=stage, **changes)
    passed = made.outcome is Outcome.PASSED and freshness.fresh
    stub = Stub(stage, holding, asks=f"does {stage} hold?")
    return Standing(
        stub, made, "0" * 64, Inputs({}, {}), freshness, passed if opens is None else opens
    )


def none_yet(stage: str) -> Standing:
    stub = Stub(stage, holding)
    return Standing(stub, None, None, Inputs({}, {}), Freshness(State.ABSENT), False)


def line(*, last: Callable[[str], Standing] | None = None, **changes: Any) -> list[Standing]:
    """Three stages of a run on a Trn2, of which the last may be made otherwise."""
    return [
        standing(DEVICE, device="none", execution=None, **changes),
        standing(IMPORTS, device="none", execution=NEURONX, **changes),
        last(FSDP) if last else standing(FSDP, **changes),
    ]


def failed(stage: str) -> Standing:
    problem = Problem(
        cause="crash",
        what="rank 1 raised",
        rank=1,
        step=3,
        log="parallelism.fsdp/1/fsdp/output.log",
        excerpt="\n".join(f"line {number}" for number in range(9)),
    )
    return standing(stage, checks=(check(measured=9.0),), problem=problem, rerun="make rerun")


# The decision


def test_a_run_on_a_trn2_that_passed_is_evidence() -> None:
    assert evidence({s.stage.id: s.verdict for s in line() if s.verdict})[0]
    assert decision(line()) == "EVIDENCE: all 3 stages passed"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"host": host(target="cpu")}, "the target is cpu"),
        ({"host": host(root="/fake")}, "environment.device: the host was read under /fake"),
        ({"hooks": ("tests:spoil",)}, "environment.device: hooks of the test suite were active"),
    ],
)
def test_a_rehearsal_says_so_and_why(changes: dict[str, Any], why: str) -> None:
    assert decision(line(**changes)) == f"REHEARSAL: all 3 stages passed (not evidence: {why})"


def test_nothing_at_all_is_a_rehearsal() -> None:
    assert decision(()).startswith("REHEARSAL: all 0 stages passed (not evidence")


def test_what_failed_first_is_named() -> None:
    assert decision(line(last=failed)) == f"EVIDENCE: failed at {FSDP}: a check said no"


def test_a_stage_that_has_not_run_leaves_the_run_incomplete() -> None:
    told = decision(line(last=none_yet))
    assert told == f"EVIDENCE: incomplete: {FSDP} has no verdict"


def test_what_is_stale_is_named_with_its_reason() -> None:
    stale = Freshness(State.STALE, "changed: code")
    told = decision(line(last=lambda stage: standing(stage, stale)))
    assert told == f"EVIDENCE: stale: {FSDP} (changed: code)"


def test_what_is_unsupported_and_accepted_is_named() -> None:
    told = decision(
        line(last=lambda stage: standing(stage, opens=True, unsupported="the vendor says so"))
    )
    assert told == f"EVIDENCE: all 3 stages passed, with {FSDP} unsupported and accepted"


def test_what_is_unsupported_and_not_accepted_closes_the_run() -> None:
    told = decision(line(last=lambda stage: standing(stage, unsupported="the vendor says so")))
    assert told.startswith(f"EVIDENCE: unsupported at {FSDP}: the vendor documents it as absent")


# What failed


def test_a_run_that_passed_has_nothing_to_say() -> None:
    assert failure_lines(line()) == []
    assert failure_lines(line(last=none_yet)) == []
    assert failure_lines(()) == []


def test_a_failure_says_check_value_limit_cause_log_excerpt_and_rerun() -> None:
    assert failure_lines(line(last=failed)) == [
        f"FAILED  {FSDP}: does {FSDP} hold?",
        "  check   loss is finite: 9.0 <= 1.0",
        "  cause   crash: rank 1 raised (rank 1, step 3)",
        "  log     cpu.native.20250101T000000Z/parallelism.fsdp/1/fsdp/output.log",
        *(f"          | line {number}" for number in range(3, 9)),
        "  rerun   make rerun",
        "",
    ]


def test_only_the_first_stage_that_failed_is_told() -> None:
    standings = [failed(DEVICE), failed(IMPORTS)]
    told = "\n".join(failure_lines(standings))
    assert DEVICE in told
    assert IMPORTS not in told


def test_of_many_checks_the_first_eight_are_told_and_the_rest_counted() -> None:
    checks = tuple(check(name=f"check {number}", measured=2.0) for number in range(11))
    told = failure_lines([standing(DEVICE, checks=checks)])
    assert sum(text.startswith("  check") for text in told) == 8
    assert "          and 3 more" in told


def test_checks_that_are_owed_and_absent_are_named() -> None:
    told = failure_lines([standing(DEVICE, expects=("loss is finite", "tokens"))])
    assert told[0].startswith(f"ERROR  {DEVICE}")
    assert "  missing tokens" in told


def test_a_stage_that_could_not_measure_is_not_said_to_miss_every_check() -> None:
    problem = Problem(cause="hang", what="nothing was written")
    told = failure_lines(
        [standing(DEVICE, expects=("a", "b"), checks=(), unmeasured=True, problem=problem)]
    )
    assert told[1] == "  cause   hang: nothing was written"
    assert not [text for text in told if "missing" in text]


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": (), "expects": ()},
        {"compared": (compared(candidate={"processes": ("101 of 1.00",)}),)},
    ],
)
def test_an_error_without_a_problem_says_why_it_is_no_pass(changes: dict[str, Any]) -> None:
    told = failure_lines([standing(DEVICE, **changes)])
    assert told[0].startswith(f"ERROR  {DEVICE}")
    assert told[1].startswith("  cause   no check was made, or two sides")


def test_the_reason_of_unsupported_is_told() -> None:
    told = failure_lines([standing(DEVICE, unsupported="the vendor says so")])
    assert "  reason  the vendor says so" in told


def test_a_stale_pass_is_not_said_to_have_failed() -> None:
    stale = Freshness(State.STALE, "changed: verdict of baseline.eager")
    told = failure_lines([standing(FSDP, stale, rerun="make rerun")])
    assert told == [
        f"STALE  {FSDP}: changed: verdict of baseline.eager",
        "  rerun   make rerun",
        "",
    ]


# Every stage, and the end


def test_every_stage_has_a_line_and_the_decision_and_the_run_follow(tmp_path: Path) -> None:
    stale = Freshness(State.STALE, "changed: plan")
    standings = [standing(DEVICE), standing(IMPORTS, stale), none_yet(FSDP)]
    told = standing_lines(tmp_path, standings)
    assert [" ".join(text.split()) for text in told] == [
        f"passed {DEVICE}",
        f"passed {IMPORTS} stale: changed: plan",
        f"- {FSDP} absent",
        decision(standings),
        f"run: {tmp_path}",
    ]


def test_the_last_lines_say_where_everything_is_and_end_with_the_decision(tmp_path: Path) -> None:
    told = closing_lines(tmp_path, line(), tmp_path / "report.md")
    assert told == [
        f"verdicts  {tmp_path}/<stage>.json",
        f"report    {tmp_path}/report.md",
        "EVIDENCE: all 3 stages passed",
    ]


def test_a_path_below_here_is_shown_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "reports/run") == os.path.join("reports", "run")  # noqa: PTH118
    assert shown(tmp_path.parent / "other") == str(tmp_path.parent / "other")
