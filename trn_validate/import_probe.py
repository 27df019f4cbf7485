"""Import one module in a process of its own, and say what was imported.

Run as ``python -m trn_validate.import_probe DISTRIBUTION [FIRST]... MODULE FILE``; what is imported
first counts only where it fails. Standard library only, so that a broken package breaks nothing but
its own answer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def main(distribution: str, modules: Sequence[str], file: str) -> int:
    """Write what the last module is to ``file``; exit status 1 where an import raised."""
    module = modules[-1]
    begun = time.monotonic()
    answer: dict[str, str | float] = {"module": module, "distribution": distribution}
    try:
        answer["version"] = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        answer["version"] = "absent"
    try:
        for name in modules:
            found = importlib.import_module(name)
        answer["origin"] = str(getattr(found, "__file__", None) or "namespace")
        answer["flavors"] = flavors(found)
        answer["result"] = "imported"
    except BaseException as error:  # a package may raise anything, SystemExit too
        answer["result"] = chain(error)
    answer["seconds"] = time.monotonic() - begun
    Path(file).write_text(json.dumps(answer), encoding="utf-8")
    return 0 if answer["result"] == "imported" else 1


def flavors(module: ModuleType) -> str:
    """Names of a model's flavours, where the module keeps them as torchtitan's models do.

    Those are a dictionary ``<model>_configs`` (torchtitan 0.3.0, models/qwen3/__init__.py).
    """
    tables = (value for name, value in vars(module).items() if name.endswith("_configs"))
    return ", ".join(str(name) for table in tables if isinstance(table, dict) for name in table)


def chain(error: BaseException) -> str:
    """The error with its causes: an autoload failure hides the real one behind its own."""
    parts = []
    seen: set[int] = set()
    link: BaseException | None = error
    # "raise error from error" makes a chain that never ends.
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        parts.append(f"{type(link).__name__}: {link}")
        link = link.__cause__ or link.__context__
    return " <- ".join(" ".join(part.split()) for part in parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:-1], sys.argv[-1]))
