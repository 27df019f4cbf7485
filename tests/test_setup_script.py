from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# The scripts are no part of what is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import KEPT, ROOT, STAMP, Answer, Interpreter, SetupError, probe, run
from scripts.setup import VENV_PYTHON, Setup, main, torch_requirement
from trn_validate.target import Signs, choose

NO_SIGN = choose(Signs())
TRN2 = choose(Signs(pci={"0x7364": 16}, product_name="trn2.48xlarge"))
INF2 = choose(Signs(pci={"0x7264": 1}))
STACK = {"torch": "2.14.0+cpu", "torch-neuronx": "2.14.3.0.1234", "neuronx-cc": "2.28.7631.0"}
INDEX = "https://index.invalid/whl/cpu"


@dataclass
class Machine:
    """A machine with some Pythons; each command is noted, and pip may do harm."""

    root: Path
    pythons: dict[str, dict[str, object]] = field(default_factory=dict)
    harm: dict[str, str | None] = field(default_factory=dict)
    fails: str = ""
    calls: list[list[str]] = field(default_factory=list)
    constraints: str = ""

    def add(
        self,
        python: str,
        versions: dict[str, str] | None = None,
        *,
        version: Sequence[int] = (3, 12, 1),
        pip: bool = True,
    ) -> None:
        held = dict.fromkeys(KEPT) | (versions or {})
        prefix = self.root / Path(python).parent.parent
        prefix.mkdir(parents=True, exist_ok=True)
        self.pythons[python] = {
            "prefix": str(prefix),
            "version": list(version),
            "torch": held["torch"] is not None,
            "native": held["torch-neuronx"] is not None,
            "pip": pip,
            "versions": held,
        }

    def __call__(self, argv: Sequence[str], quiet: bool) -> Answer:
        if quiet:
            described = self.pythons.get(argv[0])
            return Answer(0, json.dumps(described)) if described else Answer(127)
        self.calls.append(list(argv))
        if argv[1:3] == ["-m", "venv"]:
            self.add(VENV_PYTHON)
            (self.root / VENV_PYTHON).parent.mkdir(parents=True, exist_ok=True)
            (self.root / VENV_PYTHON).touch()
        if "-c" in argv:
            self.constraints = Path(argv[argv.index("-c") + 1]).read_text("utf-8")
        for described in self.pythons.values():
            versions = described["versions"]
            assert isinstance(versions, dict)
            versions.update(self.harm)
        return Answer(int(bool(self.fails) and self.fails in " ".join(argv)))

    def pip_calls(self) -> list[list[str]]:
        return [call[4:] for call in self.calls if call[1:4] == ["-m", "pip", "install"]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    source = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(source, "utf-8")
    return Machine(tmp_path)


def setup(machine: Machine, **options: object) -> Setup:
    asked: dict[str, object] = {
        "choice": NO_SIGN,
        "run": machine,
        "root": machine.root,
        "interpreter": Interpreter("python3", (3, 12, 1), True),
        "environ": {},
    }
    return Setup(**(asked | options))  # type: ignore[arg-type]


def refused(machine: Machine, **options: object) -> SetupError:
    with pytest.raises(SetupError) as caught:
        setup(machine, **options).carry_out()
    return caught.value


def test_a_fresh_machine_gets_a_venv_with_all_that_is_needed(machine: Machine) -> None:
    setup(machine).carry_out()
    assert machine.calls == [
        ["python3", "-m", "venv", ".venv"],
        [VENV_PYTHON, "-m", "pip", "install", "pip>=24"],
        [VENV_PYTHON, "-m", "pip", "install", "-e", ".[cpu]"],
    ]
    assert setup(machine).which() == VENV_PYTHON


def test_each_step_is_said_before_it_is_taken(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fails = "pip>=24"
    assert "ended with status 1: pip 24 or newer" in str(refused(machine))
    said = capsys.readouterr().out
    assert "set-up: make .venv\n  $ python3 -m venv .venv\n" in said
    assert f"  $ {VENV_PYTHON} -m pip install 'pip>=24'" in said
    assert ".[cpu]" not in said


@pytest.mark.parametrize("active", [{}, {"VIRTUAL_ENV": "/elsewhere"}])
def test_without_a_sign_no_active_environment_is_used(
    machine: Machine, active: dict[str, str]
) -> None:
    machine.add("/elsewhere/bin/python", STACK)
    setup(machine, environ=active).carry_out()
    assert {call[0] for call in machine.calls} == {"python3", VENV_PYTHON}


def test_a_second_set_up_does_nothing(machine: Machine) -> None:
    setup(machine, extras=("dev",)).carry_out()
    machine.calls.clear()
    machine.pythons.clear()
    setup(machine, extras=("dev",)).carry_out()
    setup(machine).carry_out()
    assert machine.calls == []


def test_another_extra_is_added_and_both_are_remembered(machine: Machine) -> None:
    setup(machine).carry_out()
    setup(machine, extras=("dev",)).carry_out()
    assert machine.pip_calls()[-1] == ["-e", ".[cpu,dev]"]
    machine.calls.clear()
    setup(machine, extras=("transformers",)).carry_out()
    assert machine.pip_calls()[-1] == ["-e", ".[cpu,transformers]"]
    machine.calls.clear()
    setup(machine, extras=("dev", "transformers")).carry_out()
    assert machine.calls == []


def test_a_changed_pyproject_makes_everything_due_again(machine: Machine) -> None:
    setup(machine, extras=("dev",)).carry_out()
    with (machine.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    machine.calls.clear()
    setup(machine).carry_out()
    assert machine.pip_calls() == [["pip>=24"], ["-e", ".[cpu]"]]
    machine.calls.clear()
    setup(machine, extras=("dev",)).carry_out()
    assert machine.pip_calls()[-1] == ["-e", ".[cpu,dev]"]


def test_a_set_up_that_failed_is_done_again(machine: Machine) -> None:
    setup(machine).carry_out()
    machine.fails = "dev"
    refused(machine, extras=("dev",))
    machine.fails = ""
    machine.calls.clear()
    setup(machine).carry_out()
    assert machine.pip_calls() == [["pip>=24"], ["-e", ".[cpu]"]]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"extras": 1, "torch_index": ""}', "\0"])
def test_a_damaged_stamp_counts_as_none(machine: Machine, damage: str) -> None:
    setup(machine).carry_out()
    (machine.root / ".venv" / STAMP).write_text(damage)
    machine.calls.clear()
    setup(machine).carry_out()
    assert machine.pip_calls() == [["pip>=24"], ["-e", ".[cpu]"]]


def test_a_venv_whose_python_is_gone_is_made_anew(machine: Machine) -> None:
    setup(machine).carry_out()
    (machine.root / VENV_PYTHON).unlink()
    machine.pythons.clear()
    machine.calls.clear()
    setup(machine).carry_out()
    assert machine.calls[0] == ["python3", "-m", "venv", "--clear", ".venv"]
    assert len(machine.calls) == 3


def test_a_venv_without_pip_or_with_an_old_python_says_what_to_do(machine: Machine) -> None:
    setup(machine).carry_out()
    (machine.root / ".venv" / STAMP).unlink()
    machine.add(VENV_PYTHON, pip=False)
    assert "make distclean" in str(refused(machine))
    machine.add(VENV_PYTHON, version=(3, 10, 2))
    assert "3.10.2 (.venv)" in str(refused(machine))


def test_the_torch_index_serves_torch_alone(machine: Machine) -> None:
    setup(machine, torch_index=INDEX).carry_out()
    assert machine.pip_calls() == [
        ["pip>=24"],
        ["--index-url", INDEX, "torch>=2.14,<2.15"],
        ["-e", ".[cpu]"],
    ]


def test_the_torch_index_is_remembered_and_a_new_one_is_tried(machine: Machine) -> None:
    setup(machine, torch_index=INDEX).carry_out()
    machine.calls.clear()
    setup(machine).carry_out()
    setup(machine, torch_index=INDEX).carry_out()
    assert machine.calls == []
    setup(machine, torch_index="https://other.invalid").carry_out()
    assert ["--index-url", "https://other.invalid", "torch>=2.14,<2.15"] in machine.pip_calls()


def test_the_torch_that_is_asked_for_is_the_one_of_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    cpu = tomllib.loads(text)["project"]["optional-dependencies"]["cpu"]
    assert torch_requirement(text) in cpu
    # The CPU wheel of torch brings none, and inductor needs it.
    assert "triton" in {requirement.partition(">")[0] for requirement in cpu}
    with pytest.raises(SetupError, match="names no torch"):
        torch_requirement("")


@pytest.mark.parametrize(("version", "shown"), [((3, 9, 2), "3.9.2"), ((3, 15, 0), "3.15.0")])
def test_a_python_outside_the_range_is_refused_with_the_range(
    machine: Machine, version: tuple[int, ...], shown: str
) -> None:
    error = refused(machine, interpreter=Interpreter("/usr/bin/python3", version, True))
    assert error.status == 2
    for text in (shown, "/usr/bin/python3", "3.11 to 3.14", "PYTHON="):
        assert text in str(error)
    assert machine.calls == []


def test_the_range_is_the_one_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == ">=3.11,<3.15"


def test_a_missing_ensurepip_names_the_package_to_install(machine: Machine) -> None:
    error = refused(machine, interpreter=Interpreter("python3", (3, 12, 1), False))
    assert error.status == 2
    assert "python3.12-venv" in str(error)
    assert machine.calls == []


@pytest.fixture
def neuron(machine: Machine) -> Machine:
    machine.add("opt/venv/bin/python", STACK)
    machine.add("python3")
    return machine


ACTIVE = {"VIRTUAL_ENV": "opt/venv"}


def test_on_a_neuron_host_the_active_environment_is_completed_under_constraints(
    neuron: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = setup(neuron, choice=TRN2, environ=ACTIVE, extras=("dev",))
    asked.carry_out()
    [call] = neuron.calls
    assert call[:4] == ["opt/venv/bin/python", "-m", "pip", "install"]
    assert call[4] == "-c"
    # No extra that names a torch.
    assert call[6:] == ["-e", ".[dev]"]
    assert neuron.constraints.splitlines() == [f"{n}=={v}" for n, v in STACK.items()]
    assert asked.which() == "opt/venv/bin/python"
    assert "torch-neuronx==2.14.3.0.1234" in capsys.readouterr().out
    neuron.calls.clear()
    setup(neuron, choice=TRN2, environ=ACTIVE).carry_out()
    assert neuron.calls == []


def test_without_extras_the_base_dependencies_are_installed(neuron: Machine) -> None:
    setup(neuron, choice=TRN2, environ=ACTIVE).carry_out()
    assert neuron.calls[0][-2:] == ["-e", "."]


def test_python3_is_used_where_it_has_the_torch(neuron: Machine) -> None:
    neuron.add("python3", STACK)
    assert setup(neuron, choice=TRN2).which() == "python3"


def test_the_active_environment_goes_before_python3_but_not_before_a_python_that_was_named(
    neuron: Machine,
) -> None:
    neuron.add("python3", STACK)
    assert setup(neuron, choice=TRN2, environ=ACTIVE).which() == "opt/venv/bin/python"
    given = Interpreter("python3", (3, 12, 1), True, given=True)
    found = setup(neuron, choice=TRN2, environ=ACTIVE, interpreter=given).which()
    assert found == "python3"


@pytest.mark.parametrize("fails", ["", "pip"])
@pytest.mark.parametrize(
    ("harm", "shown"),
    [
        ({"torch": "2.14.1"}, "torch: 2.14.0+cpu -> 2.14.1"),
        ({"torch-neuronx": None}, "torch-neuronx: 2.14.3.0.1234 -> absent"),
        ({"nki": "0.0.1"}, "nki: absent -> 0.0.1"),
    ],
)
def test_a_version_that_pip_changed_is_a_loud_failure(
    neuron: Machine, harm: dict[str, str | None], shown: str, fails: str
) -> None:
    setup(neuron, choice=TRN2, environ=ACTIVE).carry_out()
    neuron.harm, neuron.fails = harm, fails
    error = refused(neuron, choice=TRN2, environ=ACTIVE, extras=("dev",))
    assert error.status == 1
    assert "HAVE CHANGED" in str(error)
    assert shown in str(error)
    assert not (neuron.root / "opt/venv" / STAMP).exists()


def test_a_pip_that_fails_without_harm_says_so(neuron: Machine) -> None:
    neuron.fails = "pip"
    assert "ended with status 1" in str(refused(neuron, choice=TRN2, environ=ACTIVE))


def test_an_environment_that_no_longer_runs_is_a_loud_failure(neuron: Machine) -> None:
    def destroy(argv: Sequence[str], quiet: bool) -> Answer:
        answer = neuron(argv, quiet)
        if not quiet:
            neuron.pythons.clear()
        return answer

    assert "HAVE CHANGED" in str(refused(neuron, choice=TRN2, environ=ACTIVE, run=destroy))


def test_a_neuron_host_without_a_torch_is_told_what_to_do(neuron: Machine) -> None:
    (neuron.root / "opt/torch-neuronx/.venv").mkdir(parents=True)
    signs = Signs(str(neuron.root), {"0x7364": 16}, "trn2.48xlarge")
    error = refused(neuron, choice=choose(signs))
    assert error.status == 3
    assert neuron.calls == []
    for text in (
        "16 x 0x7364",
        "does not install the Neuron packages yet",
        'pip install "torch-neuronx==2.14.*" "neuronx-cc==2.*" nki',
        "https://pip.repos.neuron.amazonaws.com",
        "opt/torch-neuronx/.venv",
        "TARGET=cpu",
    ):
        assert text in str(error)
    assert setup(neuron, choice=choose(signs)).which() == ""


def test_a_chip_that_is_refused_is_named_before_any_advice(neuron: Machine) -> None:
    error = refused(neuron, choice=INF2)
    assert error.status == 3
    assert "the chip of this host is Inf2" in str(error)


@pytest.mark.parametrize("target", ["cpu", "rehearsal"])
def test_a_target_without_a_device_takes_the_venv_on_every_host(
    neuron: Machine, target: str
) -> None:
    setup(neuron, choice=TRN2, environ=ACTIVE, target=target).carry_out()
    assert neuron.pip_calls()[-1] == ["-e", ".[cpu]"]


def test_a_venv_that_is_not_active_counts_only_with_a_torch_that_knows_the_device(
    neuron: Machine,
) -> None:
    setup(neuron).carry_out()
    neuron.add(VENV_PYTHON, {"torch": "2.14.1"})
    assert setup(neuron, choice=TRN2).which() == ""
    neuron.add(VENV_PYTHON, STACK)
    assert setup(neuron, choice=TRN2).which() == VENV_PYTHON


def test_an_active_environment_with_an_old_python_or_no_pip_is_refused(neuron: Machine) -> None:
    neuron.add("opt/venv/bin/python", STACK, version=(3, 10, 4))
    assert "3.10.4" in str(refused(neuron, choice=TRN2, environ=ACTIVE))
    neuron.add("opt/venv/bin/python", STACK, pip=False)
    assert "ensurepip" in str(refused(neuron, choice=TRN2, environ=ACTIVE))


def test_a_real_python_describes_itself_and_a_missing_or_broken_one_is_nothing(
    tmp_path: Path,
) -> None:
    found = probe(sys.executable, run)
    assert found is not None
    assert found.prefix == sys.prefix
    assert found.version == list(sys.version_info[:3])
    assert set(found.versions) == set(KEPT)
    assert probe(str(tmp_path / "absent"), run) is None
    assert probe("/bin/true", run) is None
    assert probe("/bin/false", run) is None


def test_a_folder_that_an_uninstall_left_behind_is_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    bare = ["-S", "-c"]

    def without_packages(argv: Sequence[str], quiet: bool) -> Answer:
        return run([argv[0], *bare, *argv[2:]], quiet)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe(sys.executable, without_packages)
    assert found is not None
    assert not found.torch
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    found = probe(sys.executable, without_packages)
    assert found is not None
    assert found.torch


def test_the_command_answers_without_any_package_and_an_old_python_can_parse_it(
    tmp_path: Path,
) -> None:
    for name in ("setup.py", "environment.py"):
        ast.parse((ROOT / "scripts" / name).read_text("utf-8"), feature_version=(3, 7))
    done = subprocess.run(
        [sys.executable, "-S", "-m", "scripts.setup", "--which"],
        env={"TRN_VALIDATE_HOST_ROOT": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{VENV_PYTHON}\n")


def test_the_command_passes_the_exit_status_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "sys/devices/virtual/dmi/id/product_name"
    names.parent.mkdir(parents=True)
    names.write_text("trn2.48xlarge\n")
    monkeypatch.setenv("TRN_VALIDATE_HOST_ROOT", str(tmp_path))
    monkeypatch.setattr(Setup, "_active", lambda self: None)
    assert main([]) == 3
    assert "no active environment has a torch" in capsys.readouterr().err
    assert main(["--which"]) == 3
    assert main(["--which", "--target", "cpu"]) == 0
