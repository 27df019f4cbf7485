"""What a run found installed, and which of it executed."""

from __future__ import annotations

from tests.builders import verdict as build_verdict
from trn_validate.stack import EXECUTES, stack_of
from trn_validate.verdict import Execution


def test_versions_of_all_stages_are_put_together_and_ordered() -> None:
    first = build_verdict(versions={"torch": "2.14.1", "numpy": "2.4"}, execution=None)
    second = build_verdict(versions={"torchtitan": "0.3.0"}, execution=None)
    assert list(stack_of([first, second]).items()) == [
        ("numpy", "2.4"),
        ("torch", "2.14.1"),
        ("torchtitan", "0.3.0"),
    ]


def test_what_executed_comes_first_and_is_the_first_that_was_found() -> None:
    before = build_verdict(execution=None)
    found = build_verdict(
        versions={"torch-neuronx": "absent"},
        execution=Execution(distribution="torch-neuron-rehearsal 0.1.0"),
    )
    later = build_verdict(execution=Execution(distribution="torch-neuronx 2.14"))
    assert next(iter(stack_of([before, found, later]).items())) == (
        EXECUTES,
        "torch-neuron-rehearsal 0.1.0",
    )


def test_a_run_that_found_nothing_has_no_stack() -> None:
    assert stack_of([]) == {}
