"""What the checks of one kernel's operator came to, read from the process that made them."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import ValidationError

from trn_validate.base import Record
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.kernel_entry import Kernel
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.launching import log_path
from trn_validate.paths import make_folder, write_atomic
from trn_validate.stage import Context, Unmeasured
from trn_validate.verdict import Problem

STAGE = "kernels.nki"
MODULE = "trn_validate.kernels.opcheck"
ENTRY, ANSWER = "kernel.json", "answer.json"


class OpAnswer(Record):
    """The file that the process leaves."""

    provider: str
    reason: str
    owed: tuple[str, ...]
    """Names of the checks that had to be made."""
    checks: tuple[Check, ...] = ()
    error: str = ""
    """Why none could be made, where the kernel could not be launched."""


def ops_name(kernel: Kernel) -> str:
    """Name of the launch that checks a kernel's operator."""
    return f"ops-{kernel.name}"


def ops_request(plan: Plan, private: Path, kernel: Kernel) -> LaunchRequest:
    """The process that checks a kernel's operator."""
    folder = private / ops_name(kernel)
    files = (str(folder / ENTRY), str(folder / ANSWER))
    return LaunchRequest(
        name=ops_name(kernel),
        argv=(sys.executable, "-m", MODULE, *files),
        folder=folder,
        # Tensors this small only wait for each other: 12 s on one thread, 203 s on two.
        env={"OMP_NUM_THREADS": "1"},
        wall_seconds=plan.timeouts.wall,
        silence_seconds=plan.timeouts.wall,
        grace_seconds=plan.timeouts.grace,
    )


def write_entry(request: LaunchRequest, kernel: Kernel) -> None:
    """Write what the process reads.

    Raises:
        FolderError: it could not be written.
    """
    make_folder(request.folder)
    write_atomic(request.folder / ENTRY, (kernel.model_dump_json(indent=2) + "\n").encode())


def require_answer(context: Context, result: LaunchResult) -> None:
    """See that the process came to its end: only then is what it wrote an answer.

    Raises:
        Unmeasured: it crashed, or reached its time limit.
    """
    if not result.cause.usable:
        raise Unmeasured(
            Problem(
                cause=result.cause.value,
                what=f"{result.name}: {result.what or result.cause.phrase}",
                log=log_path(context, result),
                excerpt=result.excerpt,
            )
        )


def ops_names(kernel: Kernel) -> tuple[str, ...]:
    """Checks that are owed whatever the process says; it names the others itself."""
    return (f"{kernel.name}: provider", f"{kernel.name}: checks that were not made")


def ops_checks(plan: Plan, request: LaunchRequest, kernel: Kernel) -> list[Check]:
    """The checks that the process made, whether these are all, and what it ran on."""
    provider, unmade = ops_names(kernel)
    answer = _read(request.folder / ANSWER)
    owed = answer.owed or ("any",)
    made = {check.name for check in answer.checks}
    missing = [name for name in owed if name not in made]
    neuron = plan.profile.device == "neuron"
    return [
        Check(
            name=provider,
            measured=answer.provider,
            comparator="==" if neuron else "!=",
            limit="device" if neuron else "none",
            source="config",
            detail=answer.reason,
        ),
        Check(
            name=unmade,
            measured=len(missing),
            comparator="==",
            limit=0,
            source="derived",
            detail=answer.error or (f"first {missing[0]}" if missing else f"{len(made)} made"),
        ),
        *answer.checks,
    ]


def _read(path: Path) -> OpAnswer:
    """The answer, or one that owes a check and has none."""
    try:
        return OpAnswer.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return OpAnswer(provider="none", reason="", owed=(), error="the process left no answer")
