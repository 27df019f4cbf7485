from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from tests.builders import check, compared, verdict
from trn_validate.check import Check
from trn_validate.errors import EvidenceError
from trn_validate.verdict import Artifact, Compared, Outcome, Problem, Verdict, digest

FAILED = check(name="other", measured=2.0)


def refusal(text: str) -> str:
    with pytest.raises(EvidenceError) as caught:
        Verdict.from_json(text, where="baseline.eager.json")
    message = str(caught.value)
    assert message.startswith("baseline.eager.json: ")
    assert "Restore the file, or rerun the stage." in message
    return message


def stated(made: Verdict) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.to_json())
    return found


def test_a_verdict_whose_checks_all_hold_has_passed() -> None:
    made = verdict()
    assert made.outcome is Outcome.PASSED
    assert not made.failed_checks
    assert not made.missing


def test_a_check_that_says_no_makes_the_verdict_failed() -> None:
    made = verdict(checks=(check(), FAILED))
    assert made.outcome is Outcome.FAILED
    assert made.failed_checks == (FAILED,)


def test_the_checks_that_said_no_are_named_in_their_order() -> None:
    first, second = check(name="a", measured=2.0), check(name="b", measured=3.0)
    assert verdict(checks=(first, check(), second)).failed_checks == (first, second)


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": (), "expects": ()},
        {"checks": ()},
        {"expects": ()},
        {"expects": ("loss is finite", "loss falls")},
        {"expects": ("loss falls",)},
        {"unmeasured": True},
        {"unmeasured": True, "checks": (check(), FAILED)},
    ],
    ids=[
        "no checks and none expected",
        "no checks",
        "none expected",
        "one missing",
        "another one made",
        "not measured",
        "not measured and one failed",
    ],
)
def test_a_verdict_that_proves_nothing_is_an_error(changes: dict[str, Any]) -> None:
    assert verdict(**changes).outcome is Outcome.ERROR


def test_a_check_that_is_owed_and_absent_is_named() -> None:
    made = verdict(expects=("loss falls", "loss is finite", "rerun"))
    assert made.missing == ("loss falls", "rerun")


def test_a_check_that_said_no_counts_more_than_one_that_is_missing() -> None:
    made = verdict(expects=("loss is finite", "other", "rerun"), checks=(check(), FAILED))
    assert made.outcome is Outcome.FAILED


def test_a_check_of_one_name_that_said_no_is_not_hidden_by_another_that_holds() -> None:
    made = verdict(checks=(check(), check(measured=2.0)))
    assert made.outcome is Outcome.FAILED


@pytest.mark.parametrize("comparator", ["<=", "<", ">=", ">", "==", "!="])
def test_a_measured_value_that_is_not_a_number_fails_with_every_comparator(
    comparator: str,
) -> None:
    made = verdict(checks=(check(measured=math.nan, comparator=comparator),))
    assert made.outcome is Outcome.FAILED


def test_a_limit_that_is_not_a_number_makes_no_verdict() -> None:
    with pytest.raises(ValidationError, match="a limit has to be finite"):
        check(limit=math.nan)


def test_a_text_compared_with_a_number_fails() -> None:
    assert verdict(checks=(check(measured="0.5"),)).outcome is Outcome.FAILED


def test_a_process_id_that_came_again_is_another_process() -> None:
    again = compared("processes", candidate={"processes": ("101 of 2.00",)})
    assert verdict(compared=(again,)).outcome is Outcome.PASSED


def test_a_stage_behind_one_that_did_not_pass_is_blocked_whatever_its_checks_say() -> None:
    assert verdict(blocked_by="baseline.eager").outcome is Outcome.BLOCKED
    made = verdict(blocked_by="baseline.eager", unsupported="absent", unmeasured=True)
    assert made.outcome is Outcome.BLOCKED


def test_what_the_vendor_lacks_is_unsupported_and_not_passed() -> None:
    assert verdict(unsupported="no float64 on this device").outcome is Outcome.UNSUPPORTED
    assert verdict(unsupported="absent", checks=(FAILED,)).outcome is Outcome.UNSUPPORTED


@pytest.mark.parametrize(
    "pair",
    [
        compared(candidate={"processes": ("101 of 1.00", "102 of 1.00")}),
        compared(reference={"processes": ()}),
        compared(candidate={"processes": ()}),
        compared(reference={"processes": ()}, candidate={"processes": ()}),
        compared(candidate={"attempt": "baseline.eager/1"}),
        compared("device", candidate={"attempt": "baseline.eager/1"}),
        compared("implementation", candidate={"attempt": "baseline.eager/1"}),
        compared(candidate={"layout": "one process"}),
        compared("processes", candidate={"processes": ("101 of 1.00",)}),
        compared("processes", candidate={"processes": ()}),
    ],
    ids=[
        "one process in both",
        "no processes of the reference",
        "no processes of the candidate",
        "no processes",
        "the same attempt",
        "the same attempt for a device",
        "the same attempt for an implementation",
        "the same layout",
        "the same process for a rerun",
        "no processes of a rerun",
    ],
)
def test_a_thing_that_was_compared_with_itself_is_not_passed(pair: Compared) -> None:
    assert verdict(compared=(pair,)).outcome is Outcome.ERROR
    assert verdict(compared=(compared(), pair)).outcome is Outcome.ERROR


@pytest.mark.parametrize(
    "pair",
    [
        compared(),
        compared("device", candidate={"layout": "one process"}),
        compared("implementation", candidate={"layout": "one process, compiled by inductor"}),
        compared("processes", candidate={"attempt": "baseline.eager/1", "layout": "one process"}),
    ],
    ids=["layout", "device", "implementation", "rerun"],
)
def test_two_things_that_differ_as_they_should_may_pass(pair: Compared) -> None:
    assert verdict(compared=(pair,)).outcome is Outcome.PASSED


def test_a_stage_that_compares_nothing_may_pass() -> None:
    assert verdict(compared=()).outcome is Outcome.PASSED


def test_an_outcome_cannot_be_given_or_set() -> None:
    with pytest.raises(ValidationError):
        verdict(outcome="passed")
    failed = verdict(checks=(check(), FAILED))
    assert failed.model_copy(update={"outcome": Outcome.PASSED}).model_dump()["outcome"] == "failed"


def test_every_outcome_has_its_word_and_a_phrase() -> None:
    assert [outcome.value for outcome in Outcome] == [
        "passed",
        "failed",
        "error",
        "blocked",
        "unsupported",
    ]
    assert all(outcome.phrase for outcome in Outcome)
    assert Outcome.FAILED.phrase == "a check said no"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checks": (check(), FAILED)},
        {"checks": (check(measured=math.nan), check(name="x", measured=-math.inf))},
        {"checks": (check(measured=10**400, comparator=">"), check(name="x", measured=5))},
        {"unmeasured": True, "problem": Problem(cause="hang", what="no line", rank=3, step=2)},
        {"blocked_by": "baseline.eager"},
        {"unsupported": "absent", "execution": None, "layout": None, "compared": ()},
        {"measures": {"a": math.nan, "b": math.inf, "c": 1e-300}, "series": {"loss": (math.nan,)}},
        {"facts": {"language": '\u00e9 \u2028 \U0001f600 \\ " \n'}},
    ],
    ids=str,
)
def test_a_verdict_survives_its_file(changes: dict[str, Any]) -> None:
    made = verdict(**changes)
    text = made.to_json()
    again = Verdict.from_json(text, where="x")
    assert again.to_json() == text
    assert again.outcome is made.outcome
    assert text.endswith("}\n")


def test_a_file_that_is_only_laid_out_otherwise_is_the_same_verdict() -> None:
    made = verdict()
    assert Verdict.from_json(json.dumps(stated(made), sort_keys=True), where="x") == made


@pytest.mark.parametrize("outcome", ["passed", "error", "blocked", "unsupported", "fine", None, 0])
def test_an_outcome_that_was_edited_is_refused_with_what_the_numbers_give(
    outcome: object,
) -> None:
    found = stated(verdict(checks=(check(), FAILED))) | {"outcome": outcome}
    message = refusal(json.dumps(found))
    assert "the file says other than its numbers do (they give failed)" in message


def test_an_outcome_that_was_removed_is_refused() -> None:
    found = stated(verdict())
    del found["outcome"]
    assert "the file says other than its numbers do (they give passed)" in refusal(
        json.dumps(found)
    )


@pytest.mark.parametrize("passed", [True, 1, 0, "false", None])
def test_a_check_whose_answer_was_edited_is_refused(passed: object) -> None:
    found = stated(verdict(checks=(check(), FAILED)))
    found["checks"][1]["passed"] = passed
    assert "the file says other than its numbers do" in refusal(json.dumps(found))


def test_a_check_and_an_outcome_that_were_edited_together_are_refused() -> None:
    found = stated(verdict(checks=(check(), FAILED))) | {"outcome": "passed"}
    found["checks"][1]["passed"] = True
    assert "the file says other than its numbers do" in refusal(json.dumps(found))


@pytest.mark.parametrize(
    ("edit", "outcome"),
    [
        ({"measured": 2.0}, "failed"),
        ({"limit": 0.25}, "failed"),
        ({"comparator": ">"}, "failed"),
        ({"name": "renamed"}, "error"),
    ],
)
def test_a_number_that_was_edited_is_refused_while_the_outcome_stays(
    edit: dict[str, Any], outcome: str
) -> None:
    found = stated(verdict())
    found["checks"][0] |= edit
    assert f"(they give {outcome})" in refusal(json.dumps(found))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("schema_version", 1),
        ("schema_version", "2"),
        ("schema_version", None),
    ],
)
def test_another_schema_version_is_refused(place: str, value: object) -> None:
    message = refusal(json.dumps(stated(verdict()) | {place: value}))
    assert "not a verdict of schema version 1" in message


def test_a_file_without_schema_version_is_refused() -> None:
    found = stated(verdict())
    del found["schema_version"]
    assert "not a verdict of schema version 1" in refusal(json.dumps(found))


@pytest.mark.parametrize(
    "text",
    ["", "{", "nul", "{'a': 1}", "\x00", "{}{}", "[" * 100_000, "1" * 5000, '{"a": 1, "a": 1}'],
    ids=lambda text: text[:8],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    assert "not JSON (" in refusal(text)


@pytest.mark.parametrize("text", ["[]", "null", "5", '"passed"', "{}", "[[]]", "NaN"])
def test_json_that_is_no_verdict_is_refused(text: str) -> None:
    assert "not a verdict of schema version 1" in refusal(text)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"extra": 1}, "extra"),
        ({"checks": 5}, "checks"),
        ({"checks": [5]}, "checks.0"),
        ({"checks": [{"name": "x"}]}, "checks.0"),
        ({"inputs_sha256": "AB"}, "inputs_sha256"),
        ({"inputs_sha256": "AB" * 32}, "inputs_sha256"),
        ({"builds_on": {"baseline.eager": "x"}}, "builds_on.baseline.eager"),
        ({"attempt": "1"}, "attempt"),
        ({"attempt": True}, "attempt"),
        ({"unmeasured": 0}, "unmeasured"),
        ({"seconds": "NaN"}, "seconds"),
        ({"facts": {"a": 1}}, "facts.a"),
        ({"facts": {"a": "\ud800"}}, ""),
        ({"host": None}, "host"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_with_its_place(changes: dict[str, Any], place: str) -> None:
    message = refusal(json.dumps(stated(verdict()) | changes))
    assert f"not a verdict ({place}" in message


@pytest.mark.parametrize("name", ["stage", "host", "device", "started_at", "inputs_sha256"])
def test_a_file_that_lacks_a_part_is_refused(name: str) -> None:
    found = stated(verdict())
    del found[name]
    assert f"not a verdict ({name}: Field required)" in refusal(json.dumps(found))


def test_a_number_that_is_no_json_is_refused_since_the_file_writes_it_as_a_text() -> None:
    found = stated(verdict())
    found["measures"]["tokens_per_second"] = math.nan
    assert "the file says other than" in refusal(json.dumps(found))


def test_a_default_that_was_left_out_is_refused_since_the_file_writes_it() -> None:
    found = stated(verdict())
    del found["hooks"]
    assert "the file says other than" in refusal(json.dumps(found))


def test_a_key_given_twice_is_refused_since_readers_take_different_ones() -> None:
    text = verdict(checks=(check(), FAILED)).to_json()
    twice = text.replace('"unmeasured"', '"outcome": "passed",\n  "unmeasured"', 1)
    assert json.loads(twice)["outcome"] == "failed"
    assert "a key is given twice" in refusal(twice)


def test_a_verdict_cannot_be_changed() -> None:
    made = verdict()
    with pytest.raises(ValidationError):
        made.unmeasured = True  # type: ignore[misc]  # what is tried here
    with pytest.raises(ValidationError):
        made.checks[0].limit = 9.0  # type: ignore[misc]  # what is tried here


@pytest.mark.parametrize("sha256", ["", "ab", "AB" * 32, "ab" * 32 + "\n", "g" * 64])
def test_an_artifact_has_a_whole_digest(sha256: str) -> None:
    with pytest.raises(ValidationError, match="sha256"):
        Artifact(path="x", sha256=sha256, bytes=1)


def test_a_verdict_is_named_by_the_digest_of_its_text() -> None:
    text = verdict().to_json()
    assert digest(text) == hashlib.sha256(text.encode()).hexdigest()
    assert digest(text) != digest(verdict(attempt=2).to_json())


def test_checks_are_kept_in_the_order_in_which_they_were_made() -> None:
    names = ["c", "a", "b"]
    checks: tuple[Check, ...] = tuple(check(name=name) for name in names)
    again = Verdict.from_json(verdict(checks=checks, expects=("a",)).to_json(), where="x")
    assert [made.name for made in again.checks] == names
