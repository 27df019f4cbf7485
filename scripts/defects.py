"""Seed every defect into a small training run and show which checks stop it.

    python scripts/defects.py [--only NAME] [--folder FOLDER] [--json]

Each defect goes in through torchtitan's own seams, and the product's own stages judge what the
ranks recorded. The matrix goes to stdout, what is done to stderr. ``make defects`` runs it.

Exit status: 0 every defect was caught by the check meant for it and located, and a layout without
one gave the same bits at the beginning and at the end; 1 otherwise; 2 wrong usage; 4 a stage does
not pass without a defect; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.defects.catalogue import DEFECTS
from tests.defects.defect import Defect
from tests.defects.harness import walk
from tests.defects.matrix import as_json, render, sound
from trn_validate.errors import TrnValidateError, exit_status


def chosen(names: Sequence[str]) -> tuple[Defect, ...]:
    """The defects of those names, or all.

    Raises:
        ValueError: there is none of that name.
    """
    known = {defect.name: defect for defect in DEFECTS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no defect {unknown[0]!r}; there are: {', '.join(known)}")
    return tuple(known[name] for name in names) or DEFECTS


def run(folder: Path, defects: Sequence[Defect], *, as_text: bool) -> int:
    """Run the defects in ``folder`` and print what was found; gives the exit status."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr)

    found = walk(folder, say, defects)
    print(render(found) if as_text else json.dumps(as_json(found), indent=2), end="")
    return 0 if sound(found) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Seed, judge and print; gives the exit status."""
    parser = argparse.ArgumentParser(description="Seed defects and show which checks stop them.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="one defect")
    parser.add_argument("--folder", type=Path, help="where to work; kept, and has to be empty")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    asked = parser.parse_args(arguments)
    try:
        defects = chosen(asked.only)
    except ValueError as error:
        parser.error(str(error))
    try:
        if asked.folder is not None:
            asked.folder.mkdir(parents=True, exist_ok=True)
            return run(asked.folder.absolute(), defects, as_text=not asked.json)
        with tempfile.TemporaryDirectory(prefix="trn-validate-defects-") as folder:
            return run(Path(folder), defects, as_text=not asked.json)
    except TrnValidateError as error:
        print(f"defects: {error}", file=sys.stderr)
        return exit_status(error)
    except KeyboardInterrupt:
        print("defects: interrupted, and every rank has ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
