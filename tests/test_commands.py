from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages import stages_of
from tests.builders import ROOT, write_plan
from tests.fake_training import (
    Defect,
    FakeTraining,
    altered,
    calm_host,
    ends,
    other_state,
    raises,
    raw_ladder_plan,
    tree,
    within,
)
from trn_validate import commands, preview, runner
from trn_validate.commands import show_status, write_report_again
from trn_validate.errors import (
    ConfigError,
    EvidenceError,
    FolderError,
    Interrupted,
    UsageError,
    exit_status,
)
from trn_validate.launch import Cause, FakeLauncher
from trn_validate.preview import show_plan
from trn_validate.records import Header, Step
from trn_validate.run import BusyError, Run
from trn_validate.runner import run_plan
from trn_validate.selection import Selection
from trn_validate.store import Store
from trn_validate.target import HOST_ROOT

EAGER, FSDP, TP = "baseline.eager", "parallelism.fsdp", "parallelism.tp"
COMPILE = "kernels.compile"
STAGES = [
    "environment.device",
    "environment.imports",
    "environment.collectives",
    EAGER,
    "baseline.checkpoint",
    FSDP,
    TP,
    COMPILE,
    "kernels.nki",
]
ALL_PASSED = f"REHEARSAL: all {len(STAGES)} stages passed"


class Desk:
    """The command line of a person whose launches are imagined."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.config = write_plan(folder, raw_ladder_plan())
        self.reports = folder / "reports"
        self.training = FakeTraining()
        self.launcher = FakeLauncher(self.training)
        self.code = "1" * 64
        self.environment = {"os": "a machine"}
        self.capsys = capsys
        self.out = self.err = ""

    def _answer(self, command: Callable[..., int], *arguments: Any, **named: Any) -> int:
        self.capsys.readouterr()
        try:
            return command(stages_of, *arguments, reports=self.reports, **named)
        finally:
            self.out, self.err = self.capsys.readouterr()

    def run(
        self, *settings: str, as_json: bool = False, config: Path | None = None, **selection: Any
    ) -> int:
        """The exit status of ``run``."""
        chosen = Selection(**selection)
        plan = config or self.config
        return self._answer(run_plan, plan, "native", settings, chosen, as_json=as_json)

    def plan(self, *settings: str, as_json: bool = False) -> int:
        """The exit status of ``plan``."""
        return self._answer(show_plan, self.config, "native", settings, as_json=as_json)

    def status(self, *settings: str, as_json: bool = False, config: bool = False) -> int:
        """The exit status of ``status``."""
        plan = self.config if config else None
        return self._answer(show_status, plan, None, settings, as_json=as_json)

    def report(self) -> int:
        """The exit status of ``report``."""
        return self._answer(write_report_again, None, None, ())

    def spoil(self, *defects: Defect) -> None:
        """Have these defects from now on, and no others."""
        self.training.defects[:] = defects

    def launched(self) -> list[str]:
        """Names of the launches since this was asked last."""
        names = [request.name for request in self.launcher.requests]
        self.launcher.requests.clear()
        return names

    @property
    def runs(self) -> list[Run]:
        """Every run, the newest first."""
        return Store(self.reports).runs()


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    calm_host(monkeypatch)
    made = Desk(tmp_path, capsys)
    (tmp_path / "host").mkdir()
    monkeypatch.setenv(HOST_ROOT, str(tmp_path / "host"))
    monkeypatch.setattr(runner, "launcher_of", lambda plan: made.launcher)
    monkeypatch.setattr(commands, "code_version", lambda checkout: made.code)
    for module in (runner, preview, commands):
        monkeypatch.setattr(module, "fingerprint_now", lambda: dict(made.environment))
    return made


# run


def test_a_run_that_passes_says_what_it_is_first_and_last(desk: Desk) -> None:
    assert desk.run() == 0
    assert desk.err.startswith("REHEARSAL on the CPU")
    assert desk.out.splitlines()[-1].startswith(f"{ALL_PASSED} (not evidence:")
    assert "report.md" in desk.out
    (run,) = desk.runs
    assert (run.folder / "report.md").read_text().startswith(f"**{ALL_PASSED}")


def test_a_second_run_keeps_everything_and_launches_nothing(desk: Desk) -> None:
    desk.run()
    desk.launched()
    assert desk.run() == 0
    assert desk.launched() == []
    assert desk.err.count("kept from an earlier run") == len(STAGES)
    assert len(desk.runs) == 1


def test_new_starts_a_run_of_its_own(desk: Desk) -> None:
    desk.run()
    assert desk.run(new=True) == 0
    assert len(desk.runs) == 2
    assert "starting a new run: --new" in desk.err


def test_a_changed_environment_starts_a_new_run_and_says_why(desk: Desk) -> None:
    desk.run()
    desk.environment["torch"] = "3.0"
    assert desk.run() == 0
    assert len(desk.runs) == 2
    assert "the environment changed" in desk.err
    assert "torch: absent -> 3.0" in desk.err


def test_a_changed_setting_continues_the_run_with_what_does_not_read_it(desk: Desk) -> None:
    desk.run()
    desk.launched()
    assert desk.run("limits.float32.loss_absolute.floor=4.0e-6") == 0
    assert len(desk.runs) == 1
    assert not [name for name in desk.launched() if name.startswith("import-")]
    assert (desk.runs[0].folder / "plan-1.yaml").exists()


def test_changed_code_runs_everything_again_in_the_same_run(desk: Desk) -> None:
    desk.run()
    first = desk.launched()
    desk.code = "2" * 64
    assert desk.run() == 0
    assert desk.launched() == first
    assert len(desk.runs) == 1


def test_a_crash_exits_4_and_says_where_to_look_and_how_to_rerun(desk: Desk) -> None:
    log = "\n".join(f"line {number}" for number in range(9))
    desk.spoil(within("fsdp", ends(Cause.CRASH, "rank 1: RuntimeError: no", log)))
    assert desk.run() == 4
    lines = desk.out.splitlines()
    assert lines[0].startswith(f"ERROR  {FSDP}: does dp_shard 2 on baseline")
    assert "  cause   crash: fsdp: rank 1: RuntimeError: no (rank 0, step 2)" in lines
    (where,) = (line for line in lines if line.startswith("  log"))
    assert (desk.reports / where.split()[-1]).read_text() == log
    assert "          | line 8" in lines
    assert "          | line 2" not in lines
    (rerun,) = (line for line in lines if line.startswith("  rerun"))
    named = f"--config {desk.config} --path native --reports '<reports>' --only {FSDP}"
    assert rerun.endswith(f"pipeline.py run {named}")


def test_a_check_that_says_no_exits_1_with_value_and_limit(desk: Desk) -> None:
    desk.spoil(within("tp", altered(Step, step=4, loss=lambda old: old + 1e-3)))
    assert desk.run() == 1
    (line,) = (line for line in desk.out.splitlines() if line.startswith("  check"))
    assert "tp: loss against the reference: 0.001" in line
    assert "nats <= 5e-06 nats (largest at step 4" in line
    assert desk.out.splitlines()[-1].startswith(f"REHEARSAL: failed at {TP}: a check said no")


def test_many_failed_checks_are_not_all_printed(desk: Desk) -> None:
    broken = altered(Header, parameter_device="cuda", comm_backend="nccl", accumulation=9)
    desk.spoil(broken, altered(Step, loss=7.0, tokens=1, rows="0" * 32))
    assert desk.run() == 1
    assert desk.out.count("  check   ") == 8
    assert "          and " in desk.out


def test_a_defect_of_ours_shows_no_traceback(desk: Desk) -> None:
    desk.spoil(within("save", raises(AttributeError("no such thing"))))
    assert desk.run() == 4
    for text in (desk.out, desk.err):
        assert "Traceback" not in text
        assert "File " not in text
    assert "internal: a defect of trn-validate: AttributeError: no such thing" in desk.out
    assert "internal-error.log" in desk.out


def test_an_interrupt_goes_on_and_the_report_does_not_say_passed(desk: Desk) -> None:
    desk.run()
    desk.spoil(within("tp", raises(Interrupted(signal.SIGINT))))
    with pytest.raises(Interrupted) as caught:
        desk.run(only=TP)
    assert exit_status(caught.value) == 130
    report = (desk.runs[0].folder / "report.md").read_text()
    assert f"error at {TP}" in report.splitlines()[0]
    desk.spoil()
    assert desk.run() == 0


def test_a_disk_that_fills_in_the_middle_exits_4(desk: Desk) -> None:
    desk.spoil(within("rerun", raises(FolderError("no space is left"))))
    assert desk.run() == 4
    assert "no_space: no space is left" in desk.out


def test_a_disk_that_is_too_small_is_told_before_anything_starts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**20))
    with pytest.raises(FolderError, match=r"4\.3 GB are needed and 1\.0 MB are free"):
        desk.run()
    assert desk.runs == []


def test_json_is_alone_on_stdout_and_tells_every_stage(desk: Desk) -> None:
    assert desk.run(as_json=True) == 0
    told = json.loads(desk.out)
    assert desk.err == ""
    assert (told["exit_status"], told["evidence"], told["target"]) == (0, False, "cpu")
    assert [stage["stage"] for stage in told["stages"]] == STAGES
    assert {stage["outcome"] for stage in told["stages"]} == {"passed"}
    assert all(stage["opens"] for stage in told["stages"])
    assert Path(told["folder"]) == desk.runs[0].folder


def test_json_of_a_failure_carries_its_status(desk: Desk) -> None:
    desk.spoil(within("resume", other_state("rng", "start")))
    assert desk.run(as_json=True) == 1
    told = json.loads(desk.out)
    assert told["exit_status"] == 1
    outcomes = {stage["stage"]: stage["outcome"] for stage in told["stages"]}
    assert outcomes["baseline.checkpoint"] == "failed"
    assert outcomes[TP] == "blocked"


@pytest.mark.parametrize("defects", [(), (within("tp", ends(Cause.HANG)),)])
def test_evidence_that_is_required_is_not_given_by_a_rehearsal(
    desk: Desk, defects: tuple[Defect, ...]
) -> None:
    desk.spoil(*defects)
    assert desk.run(require_evidence=True) == 3
    assert "--require-evidence: this is a rehearsal" in desk.err


def test_a_host_root_that_was_moved_is_said_to_be_the_reason(desk: Desk, tmp_path: Path) -> None:
    desk.run(require_evidence=True)
    assert f"the host was read under {tmp_path}/host" in desk.err


def test_only_says_what_is_stale_now_and_the_next_run_repairs_it(desk: Desk) -> None:
    desk.run()
    desk.launched()
    assert desk.run(only=EAGER) == 0
    assert desk.err.count("stale now: ") == len(STAGES) - 1 - STAGES.index(EAGER)
    assert desk.launched() == ["seed", "reference", "rerun", "control", "accumulation"]
    assert desk.out.splitlines()[0].startswith("STALE  baseline.checkpoint: changed: verdict of")
    assert "PASSED" not in desk.out
    assert desk.status() == 5
    assert desk.run() == 0
    assert desk.launched() == [
        *("save", "resume", "reload", "truncated", "missing"),
        *("fsdp", "tp", "compiled-baseline", "compiled-tp"),
        *("ops-rmsnorm", "ops-swiglu", "ops-expert_mlp", "kernels", "kernels-compiled"),
        *("experts-plain", "control", "experts"),
    ]


@pytest.mark.parametrize("selection", [{"only": TP}, {"start": TP}, {"only": TP, "new": True}])
def test_a_stage_in_the_middle_of_nothing_is_refused_and_nothing_is_written(
    desk: Desk, tmp_path: Path, selection: dict[str, Any]
) -> None:
    before = tree(tmp_path)
    with pytest.raises(EvidenceError, match=r"stands behind environment\.device") as caught:
        desk.run(**selection)
    assert exit_status(caught.value) == 5
    assert tree(tmp_path) == before


def test_a_stage_in_the_middle_does_not_hide_a_run_of_another_environment(desk: Desk) -> None:
    desk.run()
    before = tree(desk.reports)
    desk.environment["torch"] = "3.0"
    with pytest.raises(EvidenceError, match=r"torch: absent -> 3\.0"):
        desk.run(only=TP)
    assert tree(desk.reports) == before


def test_a_stage_that_does_not_exist_is_refused_before_a_run_is_made(desk: Desk) -> None:
    with pytest.raises(UsageError, match=r"Did you mean parallelism\.fsdp"):
        desk.run(only="parallelism.fspd")
    assert desk.runs == []


def test_two_ways_to_name_a_stage_exclude_each_other(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="--only and --from exclude each other"):
        desk.run(only=TP, start=TP)
    with pytest.raises(ConfigError, match="--only and --until exclude each other"):
        desk.run(only=TP, until=TP)


def test_an_end_before_the_beginning_is_refused(desk: Desk) -> None:
    with pytest.raises(UsageError, match=f"{EAGER} comes before {TP}"):
        desk.run(start=TP, until=EAGER)
    assert desk.runs == []


def test_a_run_that_another_process_is_at_is_left_alone(desk: Desk) -> None:
    desk.run()
    desk.launched()
    with desk.runs[0].lock(), pytest.raises(BusyError):
        desk.run(force=True)
    assert desk.launched() == []


def test_what_a_killed_run_recorded_is_kept(desk: Desk) -> None:
    desk.run()
    attempt = desk.runs[0].new_attempt(FSDP)
    (attempt.private / "output.log").write_text("the last words\n")
    assert desk.run() == 0
    assert (attempt.folder / "output.log").read_text() == "the last words\n"
    assert f"kept what a killed run had recorded: {desk.runs[0].name}/{FSDP}/2" in desk.err


def test_a_neuron_plan_on_a_host_without_one_exits_3_and_names_what_was_looked_for(
    desk: Desk,
) -> None:
    assert desk.run(config=ROOT / "configs/trn2.48xlarge.yaml") == 3
    assert desk.launched() == []
    assert "device_absent: the plan trn2.48xlarge needs 16 Trn2 devices" in desk.out
    for sign in ("PCI functions: none", "product_name: none", "device nodes: none"):
        assert sign in desk.out


# plan


def actions(text: str) -> dict[str, str]:
    """What ``plan`` would do with each stage."""
    rows = [line.split(None, 2) for line in text.splitlines() if line.startswith(("run ", "keep "))]
    return {stage: action for action, stage, _ in rows}


def test_a_plan_shows_every_stage_and_the_exact_commands_and_touches_nothing(
    desk: Desk, tmp_path: Path
) -> None:
    before = tree(tmp_path)
    assert desk.plan() == 0
    assert tree(tmp_path) == before
    assert set(actions(desk.out).values()) == {"run"}
    assert desk.out.count("torch.distributed.run") == 2 + 5 + 5 + 2 + 2 + 5
    assert desk.out.count("trn_validate.import_probe") == 6
    assert desk.launched() == []


def test_a_plan_of_a_finished_run_keeps_everything_and_touches_nothing(desk: Desk) -> None:
    desk.run()
    before = tree(desk.reports)
    assert desk.plan() == 0
    assert tree(desk.reports) == before
    assert set(actions(desk.out).values()) == {"keep"}
    assert desk.out.count("its verdict is fresh") == len(STAGES)


def test_a_plan_says_why_a_stage_would_run(desk: Desk) -> None:
    desk.spoil(within("fsdp", ends(Cause.CRASH)))
    desk.run()
    desk.plan()
    assert "run   parallelism.fsdp         its verdict is error" in desk.out
    assert actions(desk.out)[EAGER] == "keep"
    desk.spoil()
    desk.run()
    desk.plan("limits.float32.loss_absolute.floor=4.0e-6")
    assert "run   baseline.eager           stale: changed: plan" in desk.out
    assert actions(desk.out)["environment.imports"] == "keep"


def test_a_fresh_stage_after_one_that_runs_would_run_too_and_says_so(desk: Desk) -> None:
    desk.run()
    # The widest rung decides how much memory environment.device asks for.
    desk.plan("paths.native.ladders.0.rungs.tp.tp=4")
    assert set(actions(desk.out).values()) == {"run"}
    rows = {line.split()[1]: line for line in desk.out.splitlines() if line.startswith("run ")}
    assert rows["environment.device"].endswith("stale: changed: plan")
    assert rows[EAGER].endswith("environment.device before it runs again")


def test_a_plan_that_would_start_a_new_run_says_so(desk: Desk) -> None:
    desk.run()
    desk.environment["torch"] = "3.0"
    desk.plan()
    assert "a new run would start: the environment changed" in desk.out
    assert set(actions(desk.out).values()) == {"run"}


def test_the_plan_as_json_has_argument_vectors(desk: Desk) -> None:
    assert desk.plan(as_json=True) == 0
    told = json.loads(desk.out)
    assert [row["stage"] for row in told["stages"]] == STAGES
    assert {row["action"] for row in told["stages"]} == {"run"}
    argv = told["stages"][STAGES.index(TP)]["argv"][0]
    assert argv[argv.index("--nproc-per-node") + 1] == "4"


def test_the_plan_shows_the_commands_that_then_run(desk: Desk) -> None:
    desk.plan(as_json=True)
    shown = [argv for row in json.loads(desk.out)["stages"] for argv in row["argv"]]
    desk.run()
    ran = [list(request.argv) for request in desk.launcher.requests]
    name = desk.runs[0].name
    assert len(shown) == len(ran)
    for before, after in zip(shown, ran, strict=True):
        text = " ".join(before).replace("cpu.native.<start>", name).replace("<attempt>", "1")
        assert text == " ".join(after)


# status and report


def test_status_without_a_run_is_told(desk: Desk) -> None:
    with pytest.raises(UsageError, match="there is no run at all"):
        desk.status()
    with pytest.raises(UsageError, match=r"there is no run of cpu\.native"):
        desk.status(config=True)


def test_status_exits_as_the_newest_run_stands(desk: Desk) -> None:
    desk.run()
    assert desk.status() == 0
    assert desk.out.splitlines()[0].split() == ["passed", "environment.device"]
    desk.spoil(within("tp", ends(Cause.CRASH)))
    desk.run(force=True)
    assert desk.status() == 4
    desk.spoil(within("tp", altered(Header, comm_backend="mpi")))
    desk.run()
    assert desk.status() == 1


def test_status_names_what_to_type_next(desk: Desk) -> None:
    desk.run()
    desk.status()
    assert "next:" not in desk.out
    desk.spoil(within("tp", altered(Header, comm_backend="mpi")))
    desk.run(force=True)
    desk.status()
    assert desk.out.splitlines()[-1] == f"next: {desk.runs[0].read(TP).rerun}"
    desk.code = "2" * 64
    desk.status()
    last = desk.out.splitlines()[-1]
    assert last.startswith("next: python pipeline.py run --config ")
    assert "--only" not in last


def test_status_of_changed_code_is_stale_and_says_what_changed(desk: Desk) -> None:
    desk.run()
    desk.code = "2" * 64
    assert desk.status() == 5
    assert desk.out.count("stale: changed: code") == len(STAGES)
    assert "REHEARSAL: stale: environment.device (changed: code)" in desk.out


def test_status_of_a_run_that_was_cut_short_is_incomplete(desk: Desk) -> None:
    desk.spoil(within("save", raises(Interrupted(signal.SIGTERM))))
    with pytest.raises(Interrupted):
        desk.run()
    assert desk.status() == 4
    desk.runs[0].verdict_path("baseline.checkpoint").unlink()
    assert desk.status() == 5
    assert "incomplete: baseline.checkpoint has no verdict" in desk.out


def test_status_writes_nothing(desk: Desk) -> None:
    desk.run()
    before = tree(desk.reports)
    desk.status()
    desk.status(as_json=True)
    assert tree(desk.reports) == before


def test_status_as_json_is_that_of_the_run(desk: Desk) -> None:
    desk.run(as_json=True)
    ran = json.loads(desk.out)
    desk.status(as_json=True)
    assert json.loads(desk.out) == ran


def test_status_of_a_plan_with_other_settings_judges_by_those(desk: Desk) -> None:
    desk.run("limits.float32.loss_absolute.floor=4.0e-6")
    assert desk.status() == 0
    assert desk.status(config=True) == 5


def test_a_foreign_verdict_ends_status_with_5(desk: Desk) -> None:
    desk.run()
    path = desk.runs[0].verdict_path(TP)
    path.write_text(path.read_text().replace(desk.runs[0].name, "cpu.native.20200101T000000Z"))
    with pytest.raises(EvidenceError) as caught:
        desk.status()
    assert exit_status(caught.value) == 5


def test_the_report_is_written_again_as_it_was(desk: Desk) -> None:
    desk.run()
    path = desk.runs[0].folder / "report.md"
    text = path.read_text()
    path.unlink()
    assert desk.report() == 0
    assert path.read_text() == text
    assert desk.out.strip() == str(path)


def test_the_report_of_a_stale_run_says_so_and_exits_5(desk: Desk) -> None:
    desk.run()
    desk.code = "2" * 64
    assert desk.report() == 5
    first = (desk.runs[0].folder / "report.md").read_text().splitlines()[0]
    assert "stale: environment.device (changed: code)" in first
