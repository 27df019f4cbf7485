"""Take the picture of a report that the README shows.

    python -m scripts.picture PAGE [docs/report.png]

It needs Chromium. Exit status: 0 done; 2 there is no such page, or no Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_WIDTH, _HEIGHT = 1280, 640
"""The decision, and what the run proves and does not."""


def take(page: Path, picture: Path, chromium: str) -> None:
    """Take the picture of the head of a page.

    Raises:
        subprocess.CalledProcessError: Chromium refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder, "page.png")
        argv = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        argv += [f"--window-size={_WIDTH},{_HEIGHT}", f"--screenshot={taken}"]
        argv += [page.absolute().as_uri()]
        subprocess.run(argv, capture_output=True, check=True, timeout=120)
        shutil.copyfile(taken, picture)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take it; gives the exit status."""
    parser = argparse.ArgumentParser(description="Take the picture of a report.")
    parser.add_argument("page", type=Path, help="a report.html")
    parser.add_argument("picture", type=Path, nargs="?", default=ROOT / "docs/report.png")
    asked = parser.parse_args(arguments)
    chromium = shutil.which("chromium")
    if chromium is None or not asked.page.is_file():
        what = f"{asked.page} is no file" if chromium else "Chromium is not installed"
        print(f"picture: {what}", file=sys.stderr)
        return 2
    take(asked.page, asked.picture, chromium)
    print(asked.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
