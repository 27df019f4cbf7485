"""Check every wrong kernel with every check, and show which finds which.

    python -m scripts.kernel_defects [--only NAME] [--json]

The matrix goes to stdout, what is done to stderr. ``make defects`` runs it.

Exit status: 0 every wrong kernel was found by the check meant for it; 1 otherwise; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.defects.kernels.in_cpp import IN_CPP, missing
from tests.defects.kernels.matrix import as_json, render, walk
from tests.defects.kernels.mutants import MUTANTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and print; gives the exit status."""
    parser = argparse.ArgumentParser(description="Check wrong kernels and show what finds them.")
    known = (*MUTANTS, *(() if missing() else IN_CPP))
    names = [one.name for one in known]
    parser.add_argument("--only", action="append", choices=names, help="one wrong kernel")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    if missing():
        print(f"left out: {len(IN_CPP)} compiled kernels: {missing()}", file=sys.stderr)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr)

    rows = walk([one for one in known if asked.only is None or one.name in asked.only], say)
    print(as_json(rows) if asked.json else render(rows), end="")
    return 0 if all(row.caught for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
