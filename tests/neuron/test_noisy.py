from __future__ import annotations

import pytest

from trn_validate.neuron.noisy import has_object, read_json


def is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def test_json_alone_has_no_noise() -> None:
    read = read_json("[1]\n", "tool", is_list)
    assert (read.value, read.findings) == ([1], ())


def test_the_first_value_that_fits_is_taken_and_the_rest_is_kept() -> None:
    read = read_json("[] starting {}\n[1, 2]\n[3]\n", "tool", is_list)
    assert read.value == [1, 2]
    assert [(f.id, f.raw) for f in read.findings] == [
        ("tool_output_noisy", "[] starting {}\n[3]"),
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[1, 2", "tool_output_truncated"),
        ("log\n[1, 2", "tool_output_truncated"),
        ("{}", "tool_output_unreadable"),
        ("nothing", "tool_output_unreadable"),
        ("", "tool_output_unreadable"),
    ],
)
def test_what_does_not_fit_is_named_and_kept(text: str, name: str) -> None:
    read = read_json(text, "tool", is_list)
    assert [(f.id, f.raw) for f in read.findings] == [(name, text)]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('{"a": 1}', True),
        ('log {\n{\n "a": {}\n}\n', True),
        ('{"a": 1', False),
        ("log {}", False),
        ("", False),
    ],
)
def test_a_record_is_whole_once_its_last_brace_is_there(text: str, whole: bool) -> None:
    assert has_object(text) is whole
