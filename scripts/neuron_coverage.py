"""Measure how much of trn_validate/neuron its unit tests run, and print every line left out.

    python -m scripts.neuron_coverage [--rehearsal] [PYTEST-ARGUMENT]...

With ``--rehearsal`` the whole pipeline is run on the rehearsal device too: what that runs is shown
by itself first, and then counts.
A line may be left out only if docs/coverage.md names it with a reason. Exit status: that of the
tests; 1 where a line is left out that the page does not name, or the page names one that is run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.rehearsal import PIPELINE

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "trn_validate/neuron"
PAGE = ROOT / "docs/coverage.md"
TESTS = (
    "tests/neuron",
    *sorted(str(x.relative_to(ROOT)) for x in ROOT.glob("tests/stages/test_*_neuron.py")),
)
"""Unit tests of the package, and those of the stages on a Trainium, which load it."""

REHEARSAL = "--rehearsal"

_ROW = re.compile(r"^\| `(trn_validate/neuron/[\w/]+\.py)` \| `(.+?)` \| (.+) \|$", re.MULTILINE)

Line = tuple[str, str]
"""File, relative to the checkout, and the text of a line: numbers change with every edit."""


def named(page: str) -> dict[Line, str]:
    """Lines that the page leaves out, with their reasons."""
    return {(file, text): reason for file, text, reason in _ROW.findall(page)}


def left_out(missed: Mapping[str, Sequence[int]], root: Path = ROOT) -> dict[Line, int]:
    """Lines that no test ran, with their numbers."""
    found: dict[Line, int] = {}
    for file, numbers in missed.items():
        lines = (root / file).read_text("utf-8").splitlines()
        found |= {(file, lines[number - 1].strip()): number for number in numbers}
    return found


def verdict(missed: dict[Line, int], excused: dict[Line, str]) -> tuple[list[str], int]:
    """What to print of the lines left out, and the exit status."""
    told = []
    for (file, text), number in sorted(missed.items()):
        told.append(f"{file}:{number}  {text}  ({excused.get((file, text), 'NO REASON')})")
    told += [f"{f}  {text}  (NAMED, AND IT IS RUN)" for f, text in sorted(excused.keys() - missed)]
    return told or ["no line is left out"], int(missed.keys() != excused.keys())


def rehearse(data: Path, *options: str) -> int:
    """Run the pipeline on the rehearsal device, and leave in ``data`` what it ran; its status."""
    reports = ("--reports", str(data.parent / "reports"))
    measure = ("-m", "coverage", "run", "--branch", f"--source={PACKAGE}", f"--data-file={data}")
    argv = (*(sys.executable, "-m", "scripts.rehearsal", "--"), *measure, *PIPELINE, *reports)
    return subprocess.run((*argv, *options), cwd=ROOT, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the tests under coverage and compare with the page."""
    import coverage
    import pytest

    measured = coverage.Coverage(source=[str(PACKAGE)], branch=True, data_file=None)
    wanted = [one for one in arguments if one != REHEARSAL]
    measured.start()
    status = int(pytest.main(["-q", *TESTS, *wanted]))
    measured.stop()
    if REHEARSAL in arguments:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "coverage")
            status = status or rehearse(data)
            alone = coverage.Coverage(source=[str(PACKAGE)], branch=True, data_file=str(data))
            alone.load()
            print("by the rehearsal alone:")
            alone.report(file=sys.stdout)
            measured.get_data().update(alone.get_data())
    print("in all:")
    measured.report(show_missing=True, file=sys.stdout)
    missed = {
        str(file.relative_to(ROOT)): measured.analysis2(str(file))[3]
        for file in sorted(PACKAGE.rglob("*.py"))
    }
    told, wrong = verdict(left_out(missed), named(PAGE.read_text("utf-8")))
    print("\n".join(told))
    return status or wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
