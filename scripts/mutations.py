"""Alter a bundle in thousands of ways, and count what verify finds.

``python -m scripts.mutations BUNDLE --plain 2000 --consistent 1000``. A plain alteration is left
as it is. After a consistent one every digest that follows from it is made to fit: artifacts,
what later stages build on, documents, manifest, attestation. Exit status 1 where an alteration
was not found that is not of a kind which only a signature tells.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.alterations import CONSISTENT_ALONE, KINDS, PLAIN_ALONE, SIGNATURE, Bundle
from stages import stages_of
from trn_validate.errors import TrnValidateError
from trn_validate.review.archive import opened
from trn_validate.review.verify import verify_folder


@dataclass(kw_only=True)
class Tally:
    """What came of the alterations of one way, by kind."""

    made: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    """Not found, and of no kind that needs the signature."""


def tells(folder: Path) -> bool:
    """Whether verify says that the bundle was altered, or that it is none."""
    try:
        return bool(verify_folder(folder, stages_of).differences)
    except TrnValidateError:
        return True


def alter(bundle: Bundle, count: int, rng: random.Random, *, consistent: bool) -> Tally:
    """Alter a bundle so many times, each time from the whole one."""
    tally = Tally()
    alone = PLAIN_ALONE if consistent else CONSISTENT_ALONE
    kinds = [kind for kind in KINDS if kind not in alone]
    while sum(tally.made.values()) < count:
        kind = kinds[sum(tally.made.values()) % len(kinds)]
        what = _altered(bundle, kind, rng)
        if consistent:
            bundle.make_consistent()
            if not bundle.differs():
                continue  # made to fit, it is what it was
        tally.made[kind] += 1
        if tells(bundle.folder):
            tally.found[kind] += 1
        elif kind not in SIGNATURE or not consistent:
            tally.missed.append(f"{kind}: {what}")
        bundle.restore()
    return tally


def _altered(bundle: Bundle, kind: str, rng: random.Random) -> str:
    """Alter it, and say what was done; drawn again where a draw changes nothing."""
    for _ in range(1000):
        what = KINDS[kind](bundle, rng)
        if what and bundle.differs():
            return what
        bundle.restore()
    raise ValueError(f"nothing in the bundle can be altered so: {kind}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Alter, count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--other", type=Path, help="another bundle, to take files from")
    parser.add_argument("--plain", type=int, default=2000)
    parser.add_argument("--consistent", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    rng = random.Random(asked.seed)
    status = 0
    with opened(asked.bundle) as source, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "bundle"
        shutil.copytree(source, folder)
        if tells(folder):
            print("the bundle is not consistent as it is", file=sys.stderr)
            return 1
        bundle = Bundle(folder, asked.other)
        for consistent, count in ((False, asked.plain), (True, asked.consistent)):
            tally = alter(bundle, count, rng, consistent=consistent)
            status |= _print(tally, consistent=consistent)
    return status


def _print(tally: Tally, *, consistent: bool) -> int:
    print("consistent" if consistent else "plain")
    for kind, made in sorted(tally.made.items()):
        note = ""
        if consistent and kind in SIGNATURE and tally.found[kind] < made:
            note = f"  {made - tally.found[kind]} need the signature"
        print(f"  {kind:<28} {tally.found[kind]:>5} of {made:>5} found{note}")
    for what in tally.missed[:20]:
        print(f"  MISSED {what}")
    total, found = sum(tally.made.values()), sum(tally.found.values())
    print(f"  {found} of {total} found, {len(tally.missed)} missed")
    return 1 if tally.missed else 0


if __name__ == "__main__":
    sys.exit(main())
