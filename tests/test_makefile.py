from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PIPELINE = [".venv/bin/python", "pipeline.py"]
COMMANDS = ["setup", "validate", "rerun", "status", "plan", "report", "test", "lint", "bench"]
COMMANDS += [
    "clean",
    "distclean",
    "help",
    "calibrate",
    "defects",
    "soak",
    "answers",
    "vendor-run",
    "coverage",
    "bundle",
    "verify",
    "sample",
    "compare",
    "index",
    "rehearse",
    "test-slurm",
]

# Stands for the Python of an environment: notes what it is asked, installs nothing.
FAKE_PYTHON = """#!/bin/sh
if [ "$1" = "-c" ]; then exec "{python}" "$@"; fi
echo "$*" >> "{log}"
"""


FAKE_NEURON = """#!/bin/sh
if [ "$1" = "-c" ]; then
  echo '{{"prefix": "{prefix}", "version": [3, 12, 1], "torch": true, "native": true,'
  echo '"fork": true, "pip": true, "versions": {{"torch": "2.14.0"}}}}'
else
  echo "$*" >> "{log}"
fi
"""


def make(
    *arguments: str,
    folder: Path = ROOT,
    environ: Mapping[str, str] | None = None,
    python: Sequence[str] = (f"PYTHON={sys.executable}",),
) -> subprocess.CompletedProcess[str]:
    # No variable of the make that runs these tests, or of the person who does, may leak in;
    # and a mistake in a test may not reach a real environment.
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return subprocess.run(
        ["make", *python, *arguments],
        cwd=folder,
        env={**kept, "PIP_NO_INDEX": "1", "PIP_DRY_RUN": "1", **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def host(tmp_path: Path) -> str:
    """Give a host with no sign: these tests have to pass on a Neuron machine too."""
    (tmp_path / "host").mkdir()
    return f"TRN_VALIDATE_HOST_ROOT={tmp_path / 'host'}"


def planned(*arguments: str) -> list[list[str]]:
    done = make("-n", *arguments)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Give a checkout whose environment is a fake that keeps a log."""
    folder = tmp_path / "checkout"
    scripts = ("setup", "environment", "vendor_setup", "neuron_stack")
    for name in ("Makefile", "pyproject.toml", *(f"scripts/{name}.py" for name in scripts)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("__init__.py", "target.py"):
        (folder / "trn_validate").mkdir(exist_ok=True)
        shutil.copy(ROOT / "trn_validate" / name, folder / "trn_validate" / name)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON.format(python=sys.executable, log=folder / "log"))
    python.chmod(0o755)
    return folder


def log(checkout: Path) -> list[str]:
    file = checkout / "log"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def test_help_is_the_default_and_lists_every_command() -> None:
    shown = make("help").stdout
    assert make().stdout == shown
    listed = re.findall(r"^  ([a-z-]+) +[A-Z]", shown, flags=re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    for variable in (
        "TARGET",
        "MODEL",
        "STAGE",
        "SET",
        "N",
        "BUNDLE",
        "ARGS",
        "PYTHON",
        "TORCH_INDEX",
        "LAUNCHER",
        "NODES",
    ):
        assert f"{variable}=" in shown


def test_validate_needs_no_argument(host: str) -> None:
    assert planned("validate", host)[-1] == [*PIPELINE, "run"]


def test_validate_passes_every_variable_on_as_one_argument_each(host: str) -> None:
    last = planned(
        "validate",
        "TARGET=trn2.3xlarge",
        "MODEL=native",
        "SET=limits.factor=5 name=it's",
        'ARGS=--force --from "a b" --require-evidence',
        host,
    )[-1]
    assert last == [
        *PIPELINE,
        *["run", "--config", "configs/trn2.3xlarge.yaml", "--path", "native"],
        *["--set", "limits.factor=5", "--set", "name=it's"],
        *["--force", "--from", "a b", "--require-evidence"],
    ]


def test_rerun_repeats_the_stage_that_is_named(host: str) -> None:
    last = planned("rerun", "STAGE=parallelism.fsdp", "MODEL=native", host)[-1]
    assert last == [*PIPELINE, "run", "--only", "parallelism.fsdp", "--path", "native"]


def test_rerun_without_a_stage_says_what_to_write(checkout: Path, host: str) -> None:
    done = make("rerun", host, folder=checkout)
    assert done.returncode == 2
    assert "make rerun STAGE=" in done.stderr
    assert log(checkout) == []


@pytest.mark.parametrize("command", ["status", "plan", "report"])
def test_the_commands_that_only_look_say_which_plan_they_mean(command: str, host: str) -> None:
    assert planned(command, host)[-1] == [*PIPELINE, command]
    last = planned(command, "TARGET=cpu", "ARGS=--json", host)[-1]
    assert last == [*PIPELINE, command, "--config", "configs/cpu.yaml", "--json"]


def test_test_lint_and_bench_run_in_the_environment(host: str) -> None:
    python = PIPELINE[0]
    assert planned("test", "ARGS=-k target", host)[-1] == [python, "-m", "pytest", "-k", "target"]
    assert planned("bench", host)[-1] == [python, "-m", "scripts.bench"]
    checks = planned("lint", host)[-4:]
    assert checks[:3] == [
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [python, "-m", "mypy"],
    ]
    assert checks[3][:2] == [python, "-c"]
    assert "importlinter" in checks[3][2]


def test_what_set_up_is_asked_follows_the_variables(host: str) -> None:
    plain = planned("setup", host)[0]
    assert plain[-2:] == ["--torch-index", ""]
    named = planned("setup", "TITAN_REVISION=it's", host)[0]
    assert named[-2:] == ["--titan-revision", "it's"]
    full = planned("test", "TORCH_INDEX=https://a.invalid/b", "EXTRAS=x y", "TARGET=cpu", host)[0]
    asked = full[full.index("scripts.setup") + 1 :]
    assert asked == [
        *["--target", "cpu", "--python-given", "--torch-index", "https://a.invalid/b"],
        *["--extra", "x", "--extra", "y", "--extra", "dev"],
    ]


def test_one_command_sets_up_and_then_runs(checkout: Path, host: str) -> None:
    assert make("validate", host, folder=checkout).returncode == 0
    pip = "-m pip install"
    assert log(checkout) == [f"{pip} pip>=24", f"{pip} -e .[cpu]", "pipeline.py run"]
    assert make("validate", host, folder=checkout).returncode == 0
    assert log(checkout) == ["pipeline.py run"]
    assert make("test", host, folder=checkout).returncode == 0
    assert log(checkout) == [f"{pip} pip>=24", f"{pip} -e .[cpu,dev]", "-m pytest"]
    assert make("validate", host, folder=checkout).returncode == 0
    assert log(checkout) == ["pipeline.py run"]


def test_a_set_up_with_nothing_to_do_is_silent_and_starts_no_pip(checkout: Path, host: str) -> None:
    make("setup", host, folder=checkout)
    assert log(checkout) != []
    assert make("setup", host, folder=checkout).stdout == ""
    assert log(checkout) == []


def test_a_failed_set_up_runs_nothing(checkout: Path, host: str) -> None:
    python = checkout / PIPELINE[0]
    python.write_text(python.read_text() + '[ "$2" != pip ]\n')
    done = make("validate", host, folder=checkout)
    assert done.returncode == 2
    assert "set-up: this step ended with status 1" in done.stderr
    assert log(checkout) == ["-m pip install pip>=24"]


def test_on_a_neuron_host_everything_runs_in_the_active_environment(
    checkout: Path, tmp_path: Path
) -> None:
    name = tmp_path / "host/sys/devices/virtual/dmi/id/product_name"
    name.parent.mkdir(parents=True)
    name.write_text("trn2.48xlarge\n")
    python = tmp_path / "active/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_NEURON.format(prefix=tmp_path / "active", log=checkout / "log"))
    python.chmod(0o755)
    root = f"TRN_VALIDATE_HOST_ROOT={tmp_path / 'host'}"
    active = {"VIRTUAL_ENV": str(tmp_path / "active")}
    done = make("validate", root, folder=checkout, environ=active, python=())
    assert done.returncode == 0, done.stderr
    install, run = log(checkout)
    assert re.fullmatch(r"-m pip install -c \S+/constraints.txt -e \.", install)
    assert run == "pipeline.py run"
    assert f"{python} pipeline.py run" in done.stdout
    assert "torch==2.14.0" in done.stdout


def test_a_python_that_is_not_there_gets_a_sentence(checkout: Path, host: str) -> None:
    done = make("validate", host, "PYTHON=python3-absent", folder=checkout)
    assert done.returncode == 2
    assert "python3-absent was not found" in done.stderr
    assert log(checkout) == []


def test_clean_removes_caches_and_keeps_reports_and_the_environment(checkout: Path) -> None:
    gone = [".mypy_cache/a", ".ruff_cache/a", ".pytest_cache/a", "build/a", "a.egg-info/a"]
    gone += ["trn_validate/__pycache__/a", "tests/deep/__pycache__/a"]
    kept = ["reports/a", "reports/__pycache__/a", ".venv/lib/__pycache__/a", "Makefile"]
    for path in [*gone, *kept]:
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).touch()
    assert make("clean", folder=checkout).returncode == 0
    assert [path for path in gone if (checkout / path).parent.exists()] == []
    assert [path for path in kept if not (checkout / path).exists()] == []
    assert make("distclean", folder=checkout).returncode == 0
    assert not (checkout / ".venv").exists()
    assert (checkout / "reports/a").exists()


def test_what_ci_runs_is_a_script_that_names_no_place_of_one_machine() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    text = script.read_text("utf-8")
    assert "make lint" in text
    assert "make test" in text
    assert not re.search(r"https?://|/home/|/work/|/root/", text)


KEEPING_STATUS = ("sh", "-c", '"$@"; exit $?', "sh")


def test_what_stands_between_salloc_and_a_run_gives_a_status_for_one_that_was_killed() -> None:
    for script, status in (("kill -9 $$", 137), ("exit 3", 3), ("exit 0", 0)):
        done = subprocess.run([*KEEPING_STATUS, "bash", "-c", script], check=False)
        assert done.returncode == status


def test_a_launcher_and_nodes_are_settings_and_get_an_allocation(host: str) -> None:
    asked = ("LAUNCHER=slurm", "NODES=2", "SALLOC=--exclusive", "SLURM_JOB_ID=")
    words = ["--set", "launcher=slurm", "--set", "nodes=2"]
    allocation = ["salloc", "--nodes", "2", "--exclusive", *KEEPING_STATUS]
    assert planned("validate", *asked, host)[-1] == [*allocation, *PIPELINE, "run", *words]


def test_where_no_slurm_is_one_message_says_so(checkout: Path, host: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("make", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))
    asked = ("LAUNCHER=slurm", "NODES=2", "SLURM_JOB_ID=", host)
    done = make("validate", *asked, folder=checkout, environ={"PATH": str(tools)})
    assert done.returncode == 2
    assert done.stderr.startswith("salloc was not found: type this where a Slurm can be reached")
    assert not any("pipeline.py" in line for line in log(checkout))


def test_inside_an_allocation_no_other_is_asked_for(host: str) -> None:
    last = planned("validate", "LAUNCHER=slurm", "SLURM_JOB_ID=7", host)[-1]
    assert last == [*PIPELINE, "run", "--set", "launcher=slurm"]
