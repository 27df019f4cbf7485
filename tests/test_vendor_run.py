"""The vendor's own run, with a stand-in that prints what torchtitan prints."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from stages import stages_of
from tests.builders import host, load_plan
from tests.neuron.machine import Machine
from trn_validate import vendor_run
from trn_validate.config import Plan
from trn_validate.errors import DeviceAbsent
from trn_validate.launch_local import LocalLauncher
from trn_validate.run import Run
from trn_validate.session import Chosen, plan_text
from trn_validate.store import Store
from trn_validate.target import HOST_ROOT, Signs, choose
from trn_validate.vendor_record import FOLDER, VendorRecord, newest_record
from trn_validate.vendor_run import (
    OPTIONS,
    SCRIPT,
    Fork,
    carry_out,
    find_fork,
    missing,
    show_vendor_run,
    told,
)
from trn_validate.verdict import Outcome

STAND_IN = """
import os, sys, time
mode = "{mode}"
print("[titan] options:", *sys.argv[1:])
print("[titan] environment:", *(f"{{k}}={{os.environ[k]}}" for k in ("NGPU", "MODULE", "CONFIG")))
print("[titan] tokenizer:", os.path.isdir("tests/assets/tokenizer"))
for step in range(1, 6):
    if step == 3:
        if mode == "crash":
            raise RuntimeError("nrt_init failed with status 1")
        if mode == "hang":
            time.sleep(600)
        if mode == "few":
            sys.exit(0)
    loss = "    nan" if mode == "nan" and step == 3 else f"{{9.5 - step / 10:8.5f}}"
    print(f"[rank0]:[titan] - root - INFO - \\x1b[31mstep: {{step:2}}  \\x1b[32mloss: {{loss}}"
          f"  \\x1b[33mgrad_norm:  1.2500  \\x1b[36mmemory:  1.00GiB(4.20%)  tps: 1,234\\x1b[39m")
    print(f"[titan] validate step: {{step:2}}  loss: inf  grad_norm:  1.0")
if mode == "late":
    os.abort()
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    made = load_plan(tmp_path)
    limits = made.timeouts.model_copy(update={"silence": 3.0, "grace": 0.5})
    return made.model_copy(update={"timeouts": limits})


@pytest.fixture
def run(tmp_path: Path, plan: Plan) -> Run:
    return Store(tmp_path / "reports").create(plan.target, plan.path, plan_text(plan))


def fork(folder: Path, mode: str = "good") -> Fork:
    root = folder / "fork"
    (root / "tests/assets/tokenizer").mkdir(parents=True, exist_ok=True)
    (root / "torchtitan_neuron").mkdir(exist_ok=True)
    (root / "torchtitan_neuron/__init__.py").write_text("raise SystemExit('imported')\n")
    (root / SCRIPT).write_text(f'exec "{sys.executable}" stand_in.py "$@"\n')
    (root / "stand_in.py").write_text(STAND_IN.format(mode=mode))
    return Fork(root, "0.2.2+neuron.1")


def go(run: Run, plan: Plan, made: Fork) -> VendorRecord:
    return carry_out(run, plan, made, host(), LocalLauncher())


def log_of(run: Run, record: VendorRecord) -> str:
    return (run.folder / record.log).read_text()


def test_five_finite_steps_pass_and_the_record_and_the_log_are_in_the_run_folder(
    run: Run, plan: Plan, tmp_path: Path
) -> None:
    record = go(run, plan, fork(tmp_path))
    assert record.outcome is Outcome.PASSED
    assert [(s.step, s.loss) for s in record.steps] == [
        (1, 9.4),
        (2, 9.3),
        (3, 9.2),
        (4, 9.1),
        (5, 9.0),
    ]
    assert (record.cause, record.exit_status) == ("completed", 0)
    kept = newest_record(run.folder)
    assert kept is not None
    assert kept.steps == record.steps
    assert kept.log == f"{FOLDER}/1/run/output.log"


def test_the_config_is_run_unmodified_in_the_fork_s_folder(
    run: Run, plan: Plan, tmp_path: Path
) -> None:
    log = log_of(run, go(run, plan, fork(tmp_path)))
    assert f"[titan] options: {' '.join(OPTIONS)}\n" in log
    asked = (
        *("--hf_assets_path", "./tests/assets/tokenizer", "--dataloader.dataset", "c4_test"),
        *("--training.steps", "5", "--metrics.log_freq", "1"),
    )
    assert asked == OPTIONS
    assert "NGPU=64 MODULE=torchtitan_neuron.models.qwen3 CONFIG=qwen3_8b_tp4_fsdp16_sac" in log
    assert "[titan] tokenizer: True" in log


def test_the_log_and_the_record_are_redacted(run: Run, plan: Plan, tmp_path: Path) -> None:
    made = fork(run.private)
    (made.root / "stand_in.py").write_text("import os\nprint('at', os.getcwd())\n")
    record = go(run, plan, made)
    written = (run.folder / FOLDER / "1/record.json").read_text()
    assert "at <run>" in log_of(run, record)
    assert str(tmp_path) not in written + log_of(run, record)
    assert "<run>" in written


def test_a_loss_that_is_no_number_fails_whatever_the_exit_status_says(
    run: Run, plan: Plan, tmp_path: Path
) -> None:
    record = go(run, plan, fork(tmp_path, "nan"))
    assert (record.outcome, record.exit_status) == (Outcome.FAILED, 0)
    assert [s.step for s in record.not_finite] == [3]
    assert math.isnan(record.not_finite[0].loss)
    assert "failed, 5 of 5 steps, not finite at step 3" in told(record)
    kept = newest_record(run.folder)
    assert kept is not None
    assert kept.outcome is Outcome.FAILED


def test_a_crash_is_no_pass_and_its_last_words_are_kept(
    run: Run, plan: Plan, tmp_path: Path
) -> None:
    record = go(run, plan, fork(tmp_path, "crash"))
    assert (record.outcome, record.exit_status, record.cause) == (Outcome.ERROR, 1, "crash")
    assert "nrt_init failed with status 1" in record.what
    assert "RuntimeError: nrt_init failed" in log_of(run, record)


def test_a_crash_after_the_last_step_is_shown_and_is_no_pass(
    run: Run, plan: Plan, tmp_path: Path
) -> None:
    record = go(run, plan, fork(tmp_path, "late"))
    assert (record.outcome, record.exit_status) == (Outcome.ERROR, 134)
    assert "error, 5 of 5 steps, crash, status 134" in told(record)


def test_a_hang_is_ended_by_the_silence_limit(run: Run, plan: Plan, tmp_path: Path) -> None:
    record = go(run, plan, fork(tmp_path, "hang"))
    assert (record.outcome, record.exit_status, record.cause) == (Outcome.ERROR, None, "hang")
    assert record.seconds < 60
    assert "2 of 5 steps, hang, ended by a limit" in told(record)


def test_fewer_steps_than_asked_for_are_no_pass(run: Run, plan: Plan, tmp_path: Path) -> None:
    record = go(run, plan, fork(tmp_path, "few"))
    assert (record.outcome, record.exit_status) == (Outcome.ERROR, 0)
    assert len(record.steps) == 2


def test_a_second_run_keeps_the_first_and_the_newest_counts(
    run: Run, plan: Plan, tmp_path: Path
) -> None:
    go(run, plan, fork(tmp_path))
    go(run, plan, fork(tmp_path, "nan"))
    newest = newest_record(run.folder)
    assert newest is not None
    assert newest.outcome is Outcome.FAILED
    (run.folder / FOLDER / "2/record.json").write_text("{")
    before = newest_record(run.folder)
    assert before is not None
    assert before.outcome is Outcome.PASSED


TRN2 = choose(Signs(pci={"0x7364": 16}, product_name="trn2.48xlarge", dev_nodes=("/dev/neuron0",)))


def lacking(plan: Plan, signs: Signs, made: Fork | None) -> str:
    return "; ".join(missing(Chosen(plan, choose(signs)), made))


def test_everything_that_is_missing_is_named(plan: Plan, tmp_path: Path) -> None:
    neuron = plan.model_copy(
        update={"profile": plan.profile.model_copy(update={"device": "neuron", "cores": 64})}
    )
    made = fork(tmp_path)
    assert lacking(neuron, TRN2.signs, made) == ""
    nothing = lacking(plan, Signs(), None)
    assert "a Trn2 (this host shows: PCI functions: none" in nothing
    assert "the module torchtitan_neuron (make setup" in nothing
    assert "a Trn2" in lacking(neuron, Signs(), made)
    small = neuron.model_copy(update={"profile": neuron.profile.model_copy(update={"cores": 4})})
    assert lacking(small, TRN2.signs, made) == "64 logical cores (a cpu has 4)"
    (made.root / SCRIPT).unlink()
    assert "run_train.sh beside the module" in lacking(neuron, TRN2.signs, made)
    (made.root / "tests/assets/tokenizer").rmdir()
    assert "tests/assets/tokenizer in the fork's clone" in lacking(neuron, TRN2.signs, made)


def test_the_fork_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_fork() is None
    made = fork(tmp_path)
    monkeypatch.syspath_prepend(str(made.root))
    assert find_fork() == Fork(made.root, "absent")


def test_without_device_and_fork_nothing_is_written_and_the_status_is_3(tmp_path: Path) -> None:
    with pytest.raises(DeviceAbsent, match="Missing: a Trn2") as caught:
        show_vendor_run(stages_of, Path("configs/cpu.yaml"), "native", [], reports=tmp_path / "r")
    assert caught.value.exit_status == 3
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("mode", "status"), [("good", 0), ("nan", 1), ("crash", 4)])
def test_the_command_says_how_it_went_and_the_report_shows_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    status: int,
) -> None:
    machine = Machine(tmp_path / "host", kind="trn2.48xlarge").build()
    monkeypatch.setenv(HOST_ROOT, str(machine.root))
    monkeypatch.setattr(vendor_run, "find_fork", lambda: fork(tmp_path, mode))
    reports = tmp_path / "reports"
    assert show_vendor_run(stages_of, None, "native", [], reports=reports) == status
    shown = capsys.readouterr().out
    word = {"good": "passed", "nan": "failed", "crash": "error"}[mode]
    assert f"THE VENDOR'S OWN RUN: {word}, " in shown
    (folder,) = (path for path in reports.iterdir() if path.name.startswith("trn2"))
    report = (folder / "report.md").read_text()
    section = report.split("## The vendor's own run\n")[1].split("\n## ")[0]
    assert f"| outcome | {word} |" in section
    assert "| log | vendor.run/1/run/output.log |" in section
    assert (folder / "vendor.run/1/run/output.log").exists()
