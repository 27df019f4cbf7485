"""The vendor's own test of collectives, nccom-test: it needs no torch, and checks what it sent.

Its options are those of its user guide (tools/neuron-sys-tools/nccom-test): ``--check`` compares
every output with one computed on the CPU, ``--report-to-json-file`` keeps the figures. That file
has no verdict of its own, so the exit status has to be 0 and the file has to hold results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from trn_validate.check import Check
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.neuron.finding import Finding, found
from trn_validate.neuron.noisy import Lenient
from trn_validate.neuron.tools import FOLDERS, Tools

NAME = "nccom-test"
OPERATIONS = ("allr", "allg", "redsct")
"""Sums, gathers and scattered sums: what data and tensor parallelism use."""
_BYTES = ("1024", "1048576", "32")
"""From 1 kB to 1 MB, each 32 times the one before."""
RIGHT = "right"


class _Size(Lenient):
    size: int = Field(alias="size(B)", gt=0)
    average: float = Field(alias="time:avg(us)", gt=0, allow_inf_nan=False)


class _Report(Lenient):
    results: tuple[_Size, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Answer:
    """What one run of the tool came to."""

    check: Check
    facts: dict[str, str] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)


def requests(
    root: Path, private: Path, sizes: Iterable[int], wall: float, grace: float
) -> tuple[LaunchRequest, ...]:
    """One run for each operation and number of processes; the tool is looked for below ``root``."""
    tool = Tools(root).find(NAME) or root / FOLDERS[0] / NAME
    return tuple(
        _request(str(tool), private / f"{NAME}-{operation}-{size}", operation, size, wall, grace)
        for size in sizes
        for operation in OPERATIONS
    )


def _request(
    tool: str, folder: Path, operation: str, size: int, wall: float, grace: float
) -> LaunchRequest:
    least, most, factor = _BYTES
    return LaunchRequest(
        name=f"{NAME} {operation} on {size} ranks",
        argv=(
            *(tool, operation, "-r", str(size), "-d", "fp32", "--check"),
            *("-b", least, "-e", most, "-f", factor),
            *("--non-interactive", "--report-to-json-file", str(folder / "report.json")),
        ),
        folder=folder,
        wall_seconds=wall,
        # It may be silent while it compiles, and it says nothing on its way.
        silence_seconds=wall,
        grace_seconds=grace,
    )


def is_there(request: LaunchRequest) -> bool:
    """Whether the tool of a request is installed."""
    return Path(request.argv[0]).is_file()


def judge(request: LaunchRequest, result: LaunchResult | None) -> Answer:
    """What a run says; ``result`` is None where the tool is absent, which is no pass."""
    report = Path(request.argv[-1])
    finding = _wrong(request, result, report)
    check = Check(
        name=request.name,
        measured=RIGHT if finding is None else finding.id,
        comparator="==",
        limit=RIGHT,
        source="derived",
        detail="" if finding is None else str(finding),
    )
    if finding is not None:
        return Answer(check, {request.name: finding.raw[:2000] or finding.what})
    slowest = max(_read(report).results, key=lambda one: one.size)
    return Answer(check, measures={f"{request.name}: us for {slowest.size} B": slowest.average})


def _wrong(request: LaunchRequest, result: LaunchResult | None, report: Path) -> Finding | None:
    if result is None:
        return found("tool_absent", "not found in /opt/aws/neuron/bin nor on PATH", NAME)
    if not result.cause.usable or result.exit_status != 0:
        what = f"its check said no, or it could not run: {result.what or result.cause.phrase}"
        return found("nccom_failed", what, request.name, raw=result.excerpt)
    try:
        _read(report)
    except (OSError, ValueError) as error:
        what = f"exit status 0, but its report holds no results ({_first(error)})"
        return found("nccom_unreported", what, request.name)
    return None


def _read(report: Path) -> _Report:
    return _Report.model_validate(json.loads(report.read_text(encoding="utf-8")))


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
