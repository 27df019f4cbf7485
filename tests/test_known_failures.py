"""docs/known-failures.md says nothing that the code does not know."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.stages.test_environment_device_neuron import FAULTS
from trn_validate.launch import Cause
from trn_validate.neuron import counters, imports
from trn_validate.neuron.catalogue import CATALOGUE

TESTS = ROOT / "tests"
PAGE = (ROOT / "docs/known-failures.md").read_text(encoding="utf-8")
TOLD, UNTOLD = PAGE.split("\n## What is not told\n")
CODE = re.compile(r"`([^`]+)`")
CHECKS = {*FAULTS, *counters.CHECKS, *imports.CHECKS, "placeholders from the wrong index"}
CHECKS |= {"stray ranks", "largest error", "refused"}


def rows(text: str) -> list[list[str]]:
    """Cells of every row whose first cell is a number."""
    found = re.findall(r"^\| (\d+ \|.*) \|$", text, re.M)
    return [[cell.strip() for cell in row.split(" | ")] for row in found]


@cache
def source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(source(file)).body if isinstance(node, ast.FunctionDef)}


def test_every_known_failure_has_one_row() -> None:
    numbers = [int(row[0]) for row in (*rows(TOLD), *rows(UNTOLD))]
    assert sorted(numbers) == list(range(1, 51))


def test_every_row_that_is_not_told_has_its_reason() -> None:
    assert [row[0] for row in rows(UNTOLD) if len(row) != 3 or len(row[2]) < 10] == []


@pytest.mark.parametrize("row", rows(TOLD), ids=lambda row: str(row[0]))
def test_a_row_that_is_told_names_what_tells_it_and_tests_that_exist(row: list[str]) -> None:
    names, *tests = (CODE.findall(cell) for cell in row[2:])
    assert names
    assert set(names) <= {*CATALOGUE, *Cause, *CHECKS}
    raised, quiet = (name for cell in tests for name in cell)
    for test in (raised, quiet):
        file, name = test.split("::")
        assert name in functions(TESTS / file), test
    # A check is named by a constant; a finding and a cause stand in the test as they are.
    text = source(TESTS / raised.split("::")[0])
    spelled = [name for name in names if name not in CHECKS]
    assert not spelled or any(name in text or name.upper() in text for name in spelled)


def test_every_finding_of_the_catalogue_is_named_by_a_test() -> None:
    files = [*(TESTS / "neuron").glob("test_*.py"), *(TESTS / "stages").glob("test_*neuron.py")]
    texts = "".join(source(file) for file in files)
    assert [name for name in CATALOGUE if f'"{name}"' not in texts] == []


def test_every_finding_of_the_catalogue_is_raised_by_the_package() -> None:
    package = ROOT / "trn_validate/neuron"
    texts = "".join(source(f) for f in package.glob("*.py") if f.name != "catalogue.py")
    made = set(re.findall(r'"([a-z_]+)"', texts)) | {"python_unsupported", "os_unsupported"}
    assert set(CATALOGUE) - made == set()
