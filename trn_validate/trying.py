"""The op checks of one kernel by themselves, while it is being written.

No verdict is written and none becomes stale: the verdict of kernels.nki needs every kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from trn_validate.check import Check
from trn_validate.errors import ConfigError, MeasurementError
from trn_validate.kernel_list import named
from trn_validate.kernel_ops import STAGE, ops_checks, ops_request, write_entry
from trn_validate.launch import Launcher
from trn_validate.launch_local import LocalLauncher
from trn_validate.progress import Progress
from trn_validate.review.summary import shown
from trn_validate.selection import Selection
from trn_validate.session import REPORTS, choose_plan, fingerprint_now, start
from trn_validate.store import Store


def try_kernel(
    config: Path | None,
    model_path: str,
    settings: Iterable[str],
    selection: Selection,
    name: str,
    *,
    reports: Path | None = None,
    as_json: bool = False,
    launcher: Launcher | None = None,
) -> int:
    """Check the operator of one kernel, print every check, and give 0 or 1.

    Its record is kept in ``kernels.nki/try-<n>/`` of the newest run, or of a new one.

    Raises:
        ConfigError: another stage is asked for.
        UsageError: there is no such kernel.
        MeasurementError: the process crashed, or reached its time limit.
    """
    _only_here(selection)
    plan = choose_plan(config, model_path, settings).plan
    kernel = named(plan.kernels, name)
    store = Store(reports or REPORTS)
    store.check_writable(0)
    run = store.newest(plan.target, plan.path, plan.nodes) or start(store, plan, fingerprint_now())
    progress = Progress(1, quiet=as_json)
    with run.lock():
        attempt = run.new_try(STAGE)
        request = ops_request(plan, attempt.private, kernel)
        write_entry(request, kernel)
        with progress.stage(f"{STAGE} --kernel {name}", "its operator against its reference?"):
            result = (launcher or LocalLauncher()).launch(request)
        run.publish(attempt)
    if not result.cause.usable:
        raise MeasurementError(
            f"{result.cause}: {result.what or result.cause.phrase}",
            where=f"{shown(attempt.folder)}/{request.name}",
            todo=f"Its last lines:\n{result.excerpt}" if result.excerpt else "",
        )
    checks = ops_checks(plan, request, kernel)
    print(_as_json(checks) if as_json else "\n".join(_lines(checks, attempt.folder)))
    return 0 if all(check.passed for check in checks) else 1


def _only_here(selection: Selection) -> None:
    if selection.only != STAGE or selection.start or selection.force or selection.require_evidence:
        raise ConfigError(
            f"--kernel goes with --only {STAGE} alone",
            where="command line",
            todo="It makes the checks of one operator and writes no verdict.",
        )


def _lines(checks: Sequence[Check], folder: Path) -> list[str]:
    wrong = [check for check in checks if not check.passed]
    told = [f"{'ok    ' if check.passed else 'FAILED'}  {check}" for check in checks]
    count = f"{len(checks) - len(wrong)}/{len(checks)} checks"
    return [
        *told,
        *([f"first that failed: {wrong[0]}"] if wrong else []),
        f"{count}; the record is in {shown(folder)}; this is no verdict of {STAGE}",
    ]


def _as_json(checks: Sequence[Check]) -> str:
    return json.dumps([check.model_dump(mode="json") for check in checks], indent=2)
