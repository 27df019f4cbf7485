"""The checks of one kernel, in a process of its own.

    python -m trn_validate.kernels.opcheck ENTRY ANSWER

``ENTRY`` is a file with the kernel's entry as JSON, ``ANSWER`` the one that the checks are
written to: ``provider``, ``reason``, ``owed`` and ``checks``. A kernel that cannot be launched
leaves ``error`` instead of checks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from trn_validate.errors import KernelError
from trn_validate.kernel_entry import Kernel
from trn_validate.kernels.opcheck.run import check_kernel, check_names
from trn_validate.kernels.opcheck.subjects import subject_of
from trn_validate.kernels.providers import provider


def answer(entry: Kernel) -> dict[str, object]:
    """What is found out about a kernel."""
    dtypes = [getattr(torch, name) for name in entry.dtypes]
    found: dict[str, object] = {"provider": "none", "reason": "", "owed": (), "checks": ()}
    try:
        chosen = provider()
        found |= {"provider": chosen.name, "reason": chosen.reason}
        subject = subject_of(entry)
        found["owed"] = check_names(subject, dtypes)
        checks = check_kernel(subject, dtypes)
    except KernelError as error:
        return found | {"error": str(error)}
    # Whether one passed is computed again by who reads it.
    return found | {"checks": [one.model_dump(mode="json", exclude={"passed"}) for one in checks]}


def main() -> None:
    """Check, and write the answer."""
    _, entry, path = sys.argv
    given = Kernel.model_validate_json(Path(entry).read_text(encoding="utf-8"))
    Path(path).write_text(json.dumps(answer(given)), encoding="utf-8")


if __name__ == "__main__":
    main()
