"""The vendor's own run: the fork's shipped config, unmodified, for a few steps, beside the gate.

Where it works and a stage does not, the fault is ours or the plan's; where it does not work
either, it is the stack's. It opens nothing and closes nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trn_validate.commands import gate_of
from trn_validate.config import Plan
from trn_validate.errors import DeviceAbsent
from trn_validate.gate import ERROR, FAILED, PASSED
from trn_validate.launch import Launcher, LaunchRequest
from trn_validate.launch_local import LocalLauncher
from trn_validate.paths import write_atomic
from trn_validate.run import Run
from trn_validate.session import (
    REPORTS,
    Chosen,
    choose_plan,
    continued,
    fingerprint_now,
    start,
)
from trn_validate.stage import StagesOf
from trn_validate.store import Store
from trn_validate.supervisor import OUTPUT
from trn_validate.vendor_record import FILE, FOLDER, VendorRecord, logged_steps
from trn_validate.verdict import Host, Outcome

PACKAGE, DISTRIBUTION = "torchtitan_neuron", "torchtitan-neuron"
MODULE, CONFIG = "torchtitan_neuron.models.qwen3", "qwen3_8b_tp4_fsdp16_sac"
"""What the vendor's guide runs to verify an installation (setup-torchtitan-neuron, step 2)."""

CORES = 64
"""Logical cores that the config takes: tp 4 times dp_shard 16."""

STEPS = 5
SCRIPT, TOKENIZER, DATASET = "run_train.sh", "tests/assets/tokenizer", "c4_test"

OPTIONS = (
    *("--hf_assets_path", f"./{TOKENIZER}", "--dataloader.dataset", DATASET),
    *("--training.steps", str(STEPS), "--metrics.log_freq", "1"),
)
"""The test tokenizer and data of the guide, so few steps, and a line for each of them.

Guess: the fork's run_train.sh takes these names, which torchtitan 0.3.0 takes.
"""

_STATUS = {Outcome.PASSED: PASSED, Outcome.FAILED: FAILED}


@dataclass(frozen=True)
class Fork:
    """Where the fork's sources are."""

    root: Path
    version: str


def find_fork() -> Fork | None:
    """The folder above the installed package that has the script; nothing is imported.

    A root without the script is that of the package itself.
    """
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        return None
    package = Path(places[0])
    root = next((p for p in list(package.parents)[:2] if (p / SCRIPT).is_file()), package.parent)
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        version = "absent"
    return Fork(root, version)


def missing(chosen: Chosen, fork: Fork | None) -> tuple[str, ...]:
    """What the run needs and this machine lacks, each with where it comes from."""
    return tuple(_missing(chosen, fork))


def _missing(chosen: Chosen, fork: Fork | None) -> Iterator[str]:
    plan, signs = chosen.plan, chosen.choice.signs
    if plan.profile.device != "neuron" or not (signs.trn2_functions or signs.dev_nodes):
        yield f"a Trn2 (this host shows: {signs.show()})"
    elif plan.profile.cores < CORES:
        yield f"{CORES} logical cores (a {plan.target} has {plan.profile.cores})"
    if fork is None:
        yield f"the module {PACKAGE} (make setup installs it from the vendor's repository)"
        return
    if not (fork.root / SCRIPT).is_file():
        yield f"{SCRIPT} beside the module {PACKAGE} (install the fork editable, from its clone)"
    if not (fork.root / TOKENIZER).is_dir():
        yield f"{TOKENIZER} in the fork's clone"


def request(plan: Plan, fork: Fork, folder: Path) -> LaunchRequest:
    """The vendor's script, in the fork's folder, where it finds its tokenizer and its data."""
    return LaunchRequest(
        name="vendor",
        # env -C, since a supervisor starts everything in the checkout.
        argv=("env", "-C", str(fork.root), "bash", SCRIPT, *OPTIONS),
        folder=folder,
        env={"NGPU": str(CORES), "MODULE": MODULE, "CONFIG": CONFIG, "LOG_RANK": "0"},
        wall_seconds=plan.timeouts.wall,
        silence_seconds=plan.timeouts.silence,
        grace_seconds=plan.timeouts.grace,
    )


def carry_out(run: Run, plan: Plan, fork: Fork, host: Host, launcher: Launcher) -> VendorRecord:
    """Run it once and leave its record and its redacted log in the run folder.

    Raises:
        Interrupted: a signal came; the log is kept, and there is no record.
        MeasurementError: it could not be started.
    """
    attempt = run.new_attempt(FOLDER)
    asked = request(plan, fork, attempt.private / "run")
    began = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        result = launcher.launch(asked)
    finally:
        run.publish(attempt)
    record = VendorRecord(
        fork=fork.version,
        argv=asked.argv,
        variables=dict(asked.env),
        wanted=STEPS,
        steps=logged_steps(asked.folder / OUTPUT),
        cause=result.cause.value,
        exit_status=result.exit_status,
        seconds=result.seconds,
        what=result.what,
        log=f"{attempt.relative}/run/{OUTPUT}",
        host=host,
        started_at=began,
    )
    redacted = run.redactor().structure(json.loads(record.model_dump_json()))
    write_atomic(attempt.folder / FILE, (json.dumps(redacted, indent=2) + "\n").encode())
    return record


def show_vendor_run(
    stages_of: StagesOf,
    config: Path | None,
    model_path: str,
    settings: Iterable[str],
    *,
    reports: Path | None = None,
) -> int:
    """Carry it out in the newest run of the plan, and say how it went.

    Gives 0 where every step is there and finite, 1 where a number is not, 4 otherwise.

    Raises:
        DeviceAbsent: the device or the fork is not here; the message names all that is missing.
    """
    chosen = choose_plan(config, model_path, settings)
    plan, signs, fork = chosen.plan, chosen.choice.signs, find_fork()
    lacking = missing(chosen, fork)
    if lacking or fork is None:
        raise DeviceAbsent(f"the vendor's own run cannot start. Missing: {'; '.join(lacking)}")
    from trn_validate.review.documents import write_documents

    store, environment = Store(reports or REPORTS), fingerprint_now()
    store.check_writable()
    run = continued(store, plan, environment)[0] or start(store, plan, environment)
    host = Host(
        root=signs.host_root,
        target=plan.target,
        reason=chosen.choice.reason or chosen.choice.refusal,
        trn2_functions=signs.trn2_functions,
    )
    with run.lock():
        record = carry_out(run, plan, fork, host, LocalLauncher())
        standings = gate_of(stages_of, plan, run, environment).standings()
        report = write_documents(run, plan, standings, stages_of)
    for line in closing_lines(record, run, report):
        print(line)
    return _STATUS.get(record.outcome, ERROR)


def closing_lines(record: VendorRecord, run: Run, report: Path) -> Iterator[str]:
    """How it went, and where to read on."""
    yield f"log     {run.name}/{record.log}"
    yield f"report  {run.name}/{report.name}"
    yield f"THE VENDOR'S OWN RUN: {told(record)} (outside the gate)"


def told(record: VendorRecord) -> str:
    """How it went, in one line."""
    seen = len({step.step for step in record.steps})
    ending = "ended by a limit" if record.exit_status is None else f"status {record.exit_status}"
    bad = record.not_finite
    where = f", not finite at step {bad[0].step}" if bad else ""
    what = f": {record.what}" if record.what else ""
    return (
        f"{record.outcome}, {seen} of {record.wanted} steps{where}, {record.cause}, {ending}{what}"
    )
