from __future__ import annotations

import inspect
import re
import signal

import pytest

from trn_validate import errors
from trn_validate.errors import (
    ConfigError,
    EvidenceError,
    Interrupted,
    MeasurementError,
    TrnValidateError,
    UsageError,
    exit_status,
)

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, TrnValidateError)
]
BELOW_THE_ROOT = [kind for kind in CLASSES if kind is not TrnValidateError]
TREE = re.compile(r"^( {4,})([A-Z]\w+)(?: +(\d+))?(?: |$)", re.MULTILINE)


def drawn() -> list[tuple[int, str, str | None]]:
    """Indent, name and exit status of each class that the docstring draws."""
    text = errors.__doc__ or ""
    return [(len(space), name, status or None) for space, name, status in TREE.findall(text)]


def make(kind: type[TrnValidateError]) -> TrnValidateError:
    return kind(signal.SIGINT) if issubclass(kind, Interrupted) else kind("what")


def test_the_tree_in_the_docstring_names_every_class_and_no_other() -> None:
    names = [name for _, name, _ in drawn()]
    assert sorted(names) == sorted(kind.__name__ for kind in CLASSES)
    assert len(names) > 5


def test_the_tree_in_the_docstring_draws_each_class_below_its_parent() -> None:
    above: list[tuple[int, str]] = []
    for indent, name, _ in drawn():
        above = [entry for entry in above if entry[0] < indent]
        if name != "TrnValidateError":
            assert getattr(errors, name).__base__.__name__ == above[-1][1], name
        above.append((indent, name))


def test_the_tree_in_the_docstring_gives_the_exit_status_of_each_class() -> None:
    stated = {name: status for _, name, status in drawn()}
    for kind in BELOW_THE_ROOT:
        assert stated[kind.__name__] == str(exit_status(make(kind))), kind


@pytest.mark.parametrize("kind", BELOW_THE_ROOT, ids=lambda kind: kind.__name__)
def test_every_class_has_a_docstring_of_its_own_and_an_exit_status_that_is_a_failure(
    kind: type[TrnValidateError],
) -> None:
    assert kind.__dict__.get("__doc__")
    assert exit_status(make(kind)) in {2, 3, 4, 5, 130}


def test_no_class_that_a_user_can_cause_shares_the_exit_status_of_another_branch() -> None:
    branches = [kind for kind in BELOW_THE_ROOT if kind.__base__ is TrnValidateError]
    statuses = [exit_status(make(kind)) for kind in branches]
    assert len(set(statuses)) == len(statuses)


def test_a_signal_ends_with_the_status_that_a_shell_gives() -> None:
    assert exit_status(Interrupted(signal.SIGINT)) == 130
    assert exit_status(Interrupted(signal.SIGTERM)) == 143


def test_an_interruption_names_its_signal_and_says_how_to_go_on() -> None:
    text = str(Interrupted(signal.SIGTERM))
    assert "SIGTERM" in text
    assert "Run the same command again" in text


def test_a_message_has_its_place_its_sentence_and_its_remedy_in_this_order() -> None:
    error = ConfigError("tp is 3", where="configs/cpu.yaml", todo="Take 2.")
    assert str(error) == "configs/cpu.yaml: tp is 3. Take 2."


def test_a_message_without_place_or_remedy_is_the_sentence_alone() -> None:
    assert str(MeasurementError("no record")) == "no record."


@pytest.mark.parametrize("end", [".", "?", "!"])
def test_a_sentence_that_has_an_end_gets_no_second_one(end: str) -> None:
    assert str(EvidenceError(f"stale{end}")) == f"stale{end}"


def test_a_config_error_is_caught_as_a_usage_error_and_keeps_its_parts() -> None:
    with pytest.raises(UsageError) as caught:
        raise ConfigError("what", where="where", todo="todo")
    assert (caught.value.what, caught.value.where, caught.value.todo) == ("what", "where", "todo")
