from __future__ import annotations

import sys
from pathlib import Path

# The scripts are no part of what is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.neuron_coverage import PACKAGE, PAGE, ROOT, TESTS, left_out, named, verdict

FILE = "trn_validate/neuron/files.py"
ROW = f"| `{FILE}` | `return None` | a disk that fails |\n"


def test_a_line_that_no_test_ran_and_no_page_names_is_printed_and_fails() -> None:
    told, status = verdict({(FILE, "return None"): 12}, {})
    assert told == [f"{FILE}:12  return None  (NO REASON)"]
    assert status == 1


def test_a_line_with_a_reason_is_printed_with_it_and_passes() -> None:
    told, status = verdict({(FILE, "return None"): 12}, named(ROW))
    assert told == [f"{FILE}:12  return None  (a disk that fails)"]
    assert status == 0


def test_a_reason_for_a_line_that_is_run_fails() -> None:
    told, status = verdict({}, named(ROW))
    assert told == [f"{FILE}  return None  (NAMED, AND IT IS RUN)"]
    assert status == 1


def test_nothing_left_out_is_said() -> None:
    assert verdict({}, {}) == (["no line is left out"], 0)


def test_lines_are_named_by_their_text(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    return None\n")
    assert left_out({FILE: [2]}, tmp_path) == {(FILE, "return None"): 2}


def test_what_the_page_names_is_in_the_sources_and_the_tests_are_there() -> None:
    for file, text in named(PAGE.read_text("utf-8")):
        lines = [line.strip() for line in (ROOT / file).read_text("utf-8").splitlines()]
        assert text in lines
    assert all((ROOT / test).exists() for test in TESTS)
    assert PACKAGE.is_dir()
