from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch_neuron_rehearsal.settings import AUTOLOAD, LIMITS, NAMES, PREFIX, WAYS, read

PAGE = Path(__file__).parents[2] / "docs/rehearsal.md"


def told(**variables: str) -> dict[str, str]:
    return {f"{PREFIX}{name}": value for name, value in variables.items()}


def test_who_is_told_nothing_behaves() -> None:
    found = read({"NEURON_RT_LOG_LEVEL": "INFO"})
    assert (found.faults, found.limits, found.strict_init, found.broken) == (
        {},
        set(),
        False,
        False,
    )
    assert found.memory_bytes == 24 * 2**30


def test_a_fault_is_a_name_a_way_and_the_first_call_that_has_it() -> None:
    found = read(told(FAULT="aten::mm=scale, c10d::allreduce=hang@3"))
    assert found.faults == {"aten::mm": ("scale", 1), "c10d::allreduce": ("hang", 3)}


def test_a_fault_may_be_of_one_rank_alone() -> None:
    variables = told(FAULT="aten::mm=nan", FAULT_RANK="1")
    assert read({**variables, "RANK": "0"}).faults == {}
    assert read(variables).faults == {}
    assert read({**variables, "RANK": "1"}).faults == {"aten::mm": ("nan", 1)}


def test_a_broken_import_is_no_fault_of_an_operation() -> None:
    found = read(told(FAULT=f"{AUTOLOAD}=raise"))
    assert (found.broken, found.faults) == (True, {})


def test_memory_and_limits_are_taken() -> None:
    found = read(told(MEMORY_GB="0.5", LIMITS="even_alltoall,default_barrier", STRICT_INIT="1"))
    assert found.memory_bytes == 2**29
    assert found.limits == {"even_alltoall", "default_barrier"}
    assert found.strict_init


@pytest.mark.parametrize(
    "variables",
    [
        {"FAULTS": "aten::mm=scale"},
        {"FAULT": "aten::mm"},
        {"FAULT": "aten::mm=bent"},
        {"FAULT": "aten::mm=scale@soon"},
        {"LIMITS": "odd_alltoall"},
        {"MEMORY_GB": "much"},
    ],
)
def test_what_says_nothing_is_refused_so_that_no_fault_is_asked_for_in_vain(
    variables: dict[str, str],
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(told(**variables))


def test_every_variable_way_and_limit_is_explained() -> None:
    page = PAGE.read_text("utf-8")
    missing = [name for name in NAMES if f"`{PREFIX}{name}`" not in page]
    missing += [word for word in (*WAYS, *LIMITS) if f"`{word}`" not in page]
    assert missing == []
    assert set(re.findall(rf"{PREFIX}([A-Z_]+)", page)) <= NAMES
