from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import pipeline
from tests.builders import ROOT, raw_plan, write_plan
from tests.fake_training import Rig, calm_host, ladder_plan, tree
from trn_validate import runner
from trn_validate.errors import Interrupted, exit_status
from trn_validate.target import HOST_ROOT
from trn_validate.verdict import Verdict

# The command line as it is typed, but strays of other tests are theirs to end.
COMMAND = (
    "from trn_validate import runner; runner.find_strays = list; import pipeline; pipeline.main()"
)


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


Cli = Callable[..., Done]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that shows no sign of a device."""
    root = tmp_path / "host"
    root.mkdir()
    monkeypatch.setenv(HOST_ROOT, str(root))
    return root


@pytest.fixture
def cli(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """Types a command in this process, which takes a tenth of the time."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(runner, "find_strays", list)

    def typed(*arguments: str | Path, folder: Path = ROOT) -> Done:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["pipeline.py", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            pipeline.main()
        assert isinstance(caught.value.code, int)
        return Done(caught.value.code, *capsys.readouterr())

    yield typed
    for signum, handler in before.items():
        signal.signal(signum, handler)


def process(*arguments: str | Path, folder: Path = ROOT, stdout: int = subprocess.PIPE) -> Done:
    """Types a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def refused(done: Done, status: int) -> str:
    """The one line by which a command was refused with that status."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A run whose launches were imagined, as a command finds it."""
    calm_host(monkeypatch)
    rig = Rig(tmp_path, plan=ladder_plan(tmp_path / "plan"))
    assert rig.walk() == 0
    return rig


# What no run is needed for


def test_help_names_every_command(host: Path) -> None:
    done = process("--help")
    assert done.returncode == 0
    for command in ("run", "plan", "status", "report", "stages", "schema"):
        assert f"\n  {command} " in done.stdout
    assert "Without a command: run." in done.stdout


def test_the_stages_are_listed_with_what_each_asks(cli: Cli) -> None:
    done = cli("stages")
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [
        "environment.device",
        "environment.imports",
        "environment.nodes",
        "environment.collectives",
        "environment.ops",
        "baseline.eager",
        "baseline.checkpoint",
        "parallelism.<rung>",
        "kernels.compile",
        "kernels.nki",
    ]
    assert all(line.endswith("?") for line in done.stdout.splitlines())


def test_the_schema_of_a_verdict_is_alone_on_stdout(cli: Cli) -> None:
    done = cli("schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == Verdict.model_json_schema(mode="serialization")


@pytest.mark.parametrize("arguments", [["validate"], ["run", "--onyl", "x"], ["status", "extra"]])
def test_what_is_no_command_or_option_exits_2(cli: Cli, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


# Which plan


def test_nothing_typed_means_run(host: Path) -> None:
    (host / "opt/aws/neuron/bin").mkdir(parents=True)
    message = refused(process(), 3)
    assert "a container that hides the device looks so" in message
    assert "name it with TARGET= (make) or --config" in message


def test_an_option_without_a_command_belongs_to_run(cli: Cli, tmp_path: Path) -> None:
    message = refused(cli("--config", "configs/cpuu.yaml"), 2)
    assert "no such plan. Did you mean configs/cpu.yaml?" in message


def test_a_plan_that_is_no_yaml_exits_2_with_line_and_column(host: Path, tmp_path: Path) -> None:
    file = write_plan(tmp_path, "target: cpu\nprofile: {device: cpu\n")
    message = refused(process("run", "--config", file), 2)
    assert f"{file}: not YAML" in message
    assert "line 3" in message


def test_an_unknown_key_exits_2_and_the_nearest_is_named(cli: Cli, tmp_path: Path) -> None:
    raw = raw_plan()
    raw["timeouts"]["grase"] = 5.0
    file = write_plan(tmp_path, yaml.safe_dump(raw))
    message = refused(cli("plan", "--config", file), 2)
    assert "unknown key 'grase'" in message
    assert "Did you mean 'grace'?" in message


def test_an_unknown_path_exits_2(cli: Cli) -> None:
    assert "the plan has no path 'moe'" in refused(cli("run", "--path", "moe"), 2)


def test_a_setting_that_leads_nowhere_exits_2(cli: Cli) -> None:
    message = refused(cli("run", "--set", "profil.cores=2"), 2)
    assert "Did you mean 'profile'?" in message


# run


def test_an_unknown_stage_exits_2_with_the_nearest_and_makes_no_run(
    cli: Cli, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    done = cli("run", "--only", "baseline.eagr", "--reports", reports)
    assert "Did you mean baseline.eager?" in refused(done, 2)
    assert not reports.exists()


def test_a_stage_behind_a_closed_gate_exits_5_and_nothing_is_written(
    cli: Cli, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    done = cli("run", "--only", "parallelism.tp", "--reports", reports)
    message = refused(done, 5)
    assert "parallelism.tp stands behind environment.device" in message
    assert "nothing was run" in message
    assert not reports.exists()


def test_reports_that_are_a_file_exit_2(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "reports"
    file.write_text("notes")
    for command in ("run", "status"):
        message = refused(cli(command, "--reports", file), 2)
        assert "a file is where a folder has to be" in message
    assert file.read_text() == "notes"


def test_a_neuron_plan_on_a_host_without_one_exits_3_at_once_and_names_what_was_looked_for(
    host: Path, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    plan = "configs/trn2.48xlarge.yaml"
    done = process("run", "--config", plan, "--reports", reports)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(f"plan {plan}, asked for by name; the host's signs select cpu")
    for sign in ("PCI functions: none", "product_name: none", "device nodes: none"):
        assert sign in done.stdout
    assert done.stdout.splitlines()[-1].startswith("REHEARSAL: failed at environment.device")
    (file,) = reports.glob("trn2.48xlarge.*/environment.device.json")
    told = Verdict.from_json(file.read_text(), where="told")
    assert told.commands == ()
    assert "device_absent: the plan trn2.48xlarge needs 16 Trn2 devices" in done.stdout
    (other,) = reports.glob("trn2.48xlarge.*/parallelism.8b_fsdp16.json")
    assert Verdict.from_json(other.read_text(), where="").blocked_by == "environment.device"


def test_json_of_a_run_is_alone_on_stdout(cli: Cli, tmp_path: Path) -> None:
    plan = "configs/trn2.3xlarge.yaml"
    done = cli("--json", "--config", plan, "--reports", tmp_path / "reports")
    assert done.returncode == 3
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert (told["exit_status"], told["stages"][0]["outcome"]) == (3, "failed")
    assert {stage["outcome"] for stage in told["stages"][1:]} == {"blocked"}


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_raised_where_the_run_is_at_work(signum: int, status: int) -> None:
    with pytest.raises(Interrupted) as caught:
        pipeline._interrupt(signum, None)
    assert exit_status(caught.value) == status


# plan


def test_a_plan_touches_nothing(cli: Cli, tmp_path: Path) -> None:
    before = tree(tmp_path)
    done = cli("plan", "--reports", tmp_path / "reports")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plan configs/cpu.yaml, path native: no sign of a Neuron")
    assert "torch.distributed.run --nproc-per-node 4" in done.stdout
    assert tree(tmp_path) == before


def test_the_plan_as_json_is_alone_on_stdout(cli: Cli, tmp_path: Path) -> None:
    done = cli("plan", "--json", "--reports", tmp_path / "reports")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert {row["action"] for row in told["stages"]} == {"run"}


# status and report


@pytest.mark.parametrize("command", ["status", "report"])
def test_without_a_run_there_is_nothing_to_tell(cli: Cli, tmp_path: Path, command: str) -> None:
    reports = tmp_path / "reports"
    message = refused(cli(command, "--reports", reports), 2)
    assert "there is no run at all. Start one with: make validate" in message
    assert not reports.exists()


def test_status_of_a_run_of_other_code_is_stale(finished: Rig, cli: Cli) -> None:
    before = tree(finished.store.root)
    done = cli("status", "--reports", finished.store.root)
    assert done.returncode == 5, done.stderr
    assert "stale: changed: code, environment" in done.stdout
    assert tree(finished.store.root) == before


def test_status_as_json_is_alone_on_stdout(finished: Rig, cli: Cli) -> None:
    done = cli("status", "--json", "--reports", finished.store.root)
    assert (done.returncode, done.stderr) == (5, "")
    assert json.loads(done.stdout)["exit_status"] == 5


def test_a_verdict_that_cannot_be_read_exits_5(finished: Rig, host: Path) -> None:
    path = finished.run.verdict_path("baseline.eager")
    path.write_text("{")
    message = refused(process("status", "--reports", finished.store.root), 5)
    assert f"{path}: not JSON" in message
    assert "Restore the file, or rerun the stage." in message


def test_a_verdict_of_another_run_exits_5(finished: Rig, cli: Cli) -> None:
    path = finished.run.verdict_path("parallelism.tp")
    path.write_text(path.read_text().replace(finished.run.name, "cpu.native.20200101T000000Z"))
    message = refused(cli("report", "--reports", finished.store.root), 5)
    assert "this is the verdict of parallelism.tp in the run cpu.native.20200101" in message


def test_a_command_may_be_typed_in_any_folder(finished: Rig, cli: Cli, tmp_path: Path) -> None:
    done = cli("status", "--reports", finished.store.root, folder=tmp_path)
    assert done.returncode == 5, done.stderr


@pytest.mark.parametrize("arguments", [["status"], ["schema"]])
def test_a_reader_that_went_away_is_never_told_of_a_pass(
    finished: Rig, host: Path, arguments: list[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    if arguments == ["status"]:
        arguments = ["status", "--reports", str(finished.store.root)]
    try:
        done = process(*arguments, stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode in (5, 141)
    assert done.stderr == ""


@pytest.mark.parametrize("active", [False, True])
def test_the_tools_of_the_environment_are_found_where_nobody_activated_it(
    monkeypatch: pytest.MonkeyPatch, active: bool
) -> None:
    own = str(Path(sys.executable).parent)
    before = f"/usr/bin{os.pathsep}{own}" if active else "/usr/bin"
    monkeypatch.setenv("PATH", before)
    pipeline._tools_on_path()
    assert os.environ["PATH"] == (before if active else f"{own}{os.pathsep}/usr/bin")


def test_the_vendor_s_own_run_says_what_is_missing_and_exits_3(cli: Cli, tmp_path: Path) -> None:
    error = refused(cli("vendor-run", "--reports", tmp_path), 3)
    assert "a Trn2 (this host shows: PCI functions: none" in error
    assert "the module torchtitan_neuron" in error
    assert cli("vendor-run", "--nonsense").returncode == 2
    assert cli("vendor-run", "--config", tmp_path / "absent.yaml").returncode == 2


def test_answers_are_printed_without_a_run_and_a_wrong_name_exits_2(
    cli: Cli, tmp_path: Path
) -> None:
    done = cli("answers", "--reports", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 of 10 questions answered" in done.stdout
    assert json.loads(cli("answers", "--json", "--reports", tmp_path).stdout)["run"] is None
    assert "no such run" in refused(cli("answers", "absent", "--reports", tmp_path), 2)
