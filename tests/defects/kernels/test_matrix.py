from __future__ import annotations

import json

from tests.defects.kernels.matrix import Row, as_json, columns, part, render
from tests.defects.kernels.mutants import MUTANTS

FIRST = MUTANTS[0]


def row(*failed: str) -> Row:
    return Row(FIRST, failed)


def test_a_check_is_one_column_for_both_dtypes_and_norms() -> None:
    assert part("float32: changed inputs") == "changed inputs"
    assert part("float32, tiny: largest error") == part("bfloat16, tiny: frobenius error") == "tiny"
    assert part("float32, not contiguous: opcheck") == "not contiguous: opcheck"
    assert columns([row("float32: a", "bfloat16: a"), row("float32: b")]) == ["a", "b"]


def test_a_wrong_kernel_that_another_check_found_is_missed() -> None:
    assert row(FIRST.check).caught
    other = row("float32: changed inputs")
    assert not other.caught
    assert f"MISSED: {FIRST.name}" in render([other])
    assert "0 of 1 found" in render([other]) and "1 of 1 found" in render([row(FIRST.check)])


def test_a_cell_says_in_which_dtypes_it_was_found() -> None:
    both = render([row("float32, tiny: largest error", "bfloat16, tiny: frobenius error")])
    assert f"| {FIRST.name} | fb |" in both
    other = Row(MUTANTS[1], ("float32: degenerate outputs",))
    two = render([row("bfloat16: changed inputs"), other])
    assert f"| {FIRST.name} | b | . |" in two and f"| {other.mutant.name} | . | f |" in two


def test_the_json_says_what_was_meant_and_what_was_found() -> None:
    (found,) = json.loads(as_json([row("float32: x")]))
    assert found["failed"] == ["float32: x"] and found["meant"] == FIRST.check
    assert found["caught"] is False
