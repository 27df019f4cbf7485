"""What the matrix says of a defect that was caught, and of one that was not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.builders import check, verdict
from tests.defects.catalogue import DEFECTS
from tests.defects.defect import Defect
from tests.defects.found import Finding, Findings, Repetition
from tests.defects.matrix import as_json, escaped, judged, render, sound, unproved
from trn_validate.check import Check
from trn_validate.verdict import Outcome

GRADIENT = "fsdp: gradient of step 1"
LOSS = "fsdp: loss against the reference"


def failing(name: str, detail: str = "") -> Check:
    return check(name=name, measured=2.0, detail=detail)


def finding(*failed: Check, **changes: Any) -> Finding:
    values = {
        "name": "gradient scaled",
        "stands_for": "a gradient of the wrong size",
        "hook": "gradients:averaged_twice",
        "stage": "parallelism.fsdp",
        "launches": ("fsdp",),
        "caught_by": (GRADIENT,),
        "located": "norm.weight",
    }
    return Finding(
        defect=Defect(**(values | changes)),
        outcome=Outcome.FAILED if failed else Outcome.PASSED,
        failed=failed,
        made=(GRADIENT, LOSS),
        problem="",
        seconds=1.0,
    )


def findings(*found: Finding, equal: bool = True) -> Findings:
    again = Repetition("fsdp", 12, () if equal else ("rank 0 step 1: loss",))
    return Findings(defects=list(found), repetitions=[again])


def test_a_defect_that_its_check_names_is_caught() -> None:
    found = findings(finding(failing(GRADIENT, "over the limit: norm.weight")))
    assert escaped(found) == []
    assert sound(found)


def test_a_defect_that_another_check_stopped_has_escaped() -> None:
    found = findings(finding(failing(LOSS, "norm.weight")))
    (one,) = escaped(found)
    assert one.missed_by == (GRADIENT,)
    assert not sound(found)


def test_a_defect_that_is_not_located_has_escaped() -> None:
    found = findings(finding(failing(GRADIENT, "somewhere")))
    (one,) = escaped(found)
    assert one.missed_by == ()
    assert not one.located


def test_what_another_check_says_does_not_locate_a_defect() -> None:
    found = findings(finding(failing(GRADIENT), failing(LOSS, "norm.weight")))
    assert [one.located for one in judged(found)] == [False]


def test_every_check_that_is_meant_has_to_say_no() -> None:
    both = finding(failing(GRADIENT, "norm.weight"), caught_by=(GRADIENT, LOSS))
    (one,) = escaped(findings(both))
    assert one.missed_by == (LOSS,)


def test_the_loss_alone_shows_only_what_a_check_of_the_loss_stopped() -> None:
    blind, seen = judged(
        findings(
            finding(failing(GRADIENT, "norm.weight")),
            finding(failing(GRADIENT, "norm.weight"), failing(LOSS)),
        )
    )
    assert not blind.seen_in_the_loss
    assert seen.seen_in_the_loss


def test_a_layout_that_gave_other_bits_the_second_time_is_not_sound() -> None:
    found = findings(finding(failing(GRADIENT, "norm.weight")), equal=False)
    assert not sound(found)
    assert "NOT EQUAL first and last: rank 0 step 1: loss" in render(found)


def test_nothing_found_is_not_sound() -> None:
    assert not sound(Findings())
    assert not sound(Findings(repetitions=[Repetition("fsdp", 12, ())]))


def test_a_repetition_without_anything_to_compare_is_not_equal() -> None:
    assert not Repetition("fsdp", 0, ()).equal


def test_a_check_that_no_defect_made_fail_is_named() -> None:
    found = findings(finding(failing(GRADIENT, "norm.weight")))
    found.clean["parallelism.fsdp"] = verdict(checks=(check(name=GRADIENT), check(name=LOSS)))
    assert unproved(found) == ["loss against the reference"]


def test_the_text_marks_the_check_that_was_meant_and_the_others() -> None:
    found = findings(finding(failing(GRADIENT, "norm.weight"), failing(LOSS)))
    row = next(line for line in render(found).splitlines() if line.startswith("gradient scaled"))
    assert row.split() == ["gradient", "scaled", "X", "x", "yes", "yes", "yes"]


def test_the_text_and_the_json_name_a_defect_that_escaped() -> None:
    found = findings(finding())
    assert f"ESCAPED gradient scaled: passed, not by {GRADIENT}" in render(found)
    (row,) = as_json(found)["defects"]  # type: ignore[misc]
    assert (row["name"], row["missed_by"]) == ("gradient scaled", [GRADIENT])


def test_there_are_at_least_thirty_defects_and_no_two_of_one_name() -> None:
    names = Counter(defect.name for defect in DEFECTS)
    assert len(names) >= 30
    assert max(names.values()) == 1


def test_every_defect_names_its_check_and_its_place() -> None:
    assert [d.name for d in DEFECTS if not (d.caught_by and d.located and d.launches)] == []
