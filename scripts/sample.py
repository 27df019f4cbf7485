"""Make the committed sample bundle again from a real run on the CPU.

``python -m scripts.sample`` runs the CPU plan anew, packs it without tensors, and unpacks that to
reports/sample/. ``--run NAME`` takes a run that is there. ``--documents`` leaves the verdicts and
records of the sample as they are and makes its documents alone again, as a change of a template
asks for.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stages import stages_of
from trn_validate.paths import file_digest, files_below, show_bytes, write_atomic
from trn_validate.review import manifest
from trn_validate.review.archive import opened
from trn_validate.review.bundle import show_bundle
from trn_validate.review.documents import rendered, seal
from trn_validate.review.recorded import read_recorded
from trn_validate.review.verify import show_verification
from trn_validate.session import CHECKOUT, REPORTS

SAMPLE = REPORTS / "sample"
MOST_BYTES = 3_000_000
"""It is cloned with every checkout."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, pack, unpack and verify; the exit status of what went wrong first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="name of a run; a new one is made without it")
    parser.add_argument("--documents", action="store_true", help="make the documents alone again")
    chosen = parser.parse_args(arguments)
    if chosen.documents:
        write_again(SAMPLE)
        return show_verification(SAMPLE, stages_of)
    name = chosen.run
    if name is None:
        plan = str(CHECKOUT / "configs" / "cpu.yaml")
        command = [sys.executable, "pipeline.py", "run", "--new", "--config", plan]
        status = subprocess.run(command, cwd=CHECKOUT, check=False).returncode
        if status:
            return status
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "sample.tar.gz"
        show_bundle(name, archive, "0", stages_of)
        with opened(archive) as folder:
            size = sum(path.stat().st_size for path in files_below(folder))
            if size > MOST_BYTES:
                print(f"{show_bytes(size)} are too much for a sample", file=sys.stderr)
                return 1
            shutil.rmtree(SAMPLE, ignore_errors=True)
            shutil.copytree(folder, SAMPLE)
    return show_verification(SAMPLE, stages_of)


def write_again(folder: Path) -> None:
    """Write a bundle's documents by the code of this tree, its manifest and its attestation.

    Raises:
        EvidenceError: what they are made from cannot be read.
    """
    recorded = read_recorded(folder, stages_of)
    of = (recorded.name, recorded.plan, recorded.standings)
    listed = manifest.parse((folder / manifest.NAME).read_text(encoding="utf-8"))
    for name, data in rendered(folder, *of, stages_of).items():
        write_atomic(folder / name, data)
        listed[name] = file_digest(folder / name)
    seal(folder, listed, recorded.standings)


if __name__ == "__main__":
    sys.exit(main())
