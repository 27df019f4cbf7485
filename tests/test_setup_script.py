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

from scripts import neuron_stack
from scripts.environment import KEPT, ROOT, STAMP, Answer, Interpreter, SetupError, probe, run
from scripts.setup import Setup, main, torch_requirement
from scripts.vendor_setup import VENV_PYTHON
from trn_validate.fingerprint import system
from trn_validate.neuron import releases
from trn_validate.target import Choice, Signs, choose

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
            "fork": held["torchtitan-neuron"] is not None,
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
        if not self.fails or self.fails not in " ".join(argv):
            self.bring(argv)
        if "-c" in argv:
            self.constraints = Path(argv[argv.index("-c") + 1]).read_text("utf-8")
        for described in self.pythons.values():
            versions = described["versions"]
            assert isinstance(versions, dict)
            versions.update(self.harm)
        return Answer(int(bool(self.fails) and self.fails in " ".join(argv)))

    def bring(self, argv: Sequence[str]) -> None:
        """Install what is asked for by ==, and the fork by its folder, as pip would."""
        described = self.pythons.get(argv[0])
        if described is None or argv[1:4] != ["-m", "pip", "install"]:
            return
        versions = described["versions"]
        assert isinstance(versions, dict)
        for name, _, version in (word.partition("==") for word in argv if "==" in word):
            versions[name] = version.replace("*", "1")
            if name == "torch-neuronx":
                versions["torch"] = "2.14.0"
                described["torch"] = described["native"] = True
        if argv[-1].endswith("src/torchtitan-neuron"):
            versions["torchtitan-neuron"] = "0.2.2+neuron.1"
            described["fork"] = True

    def pip_calls(self) -> list[list[str]]:
        return [call[4:] for call in self.calls if call[1:4] == ["-m", "pip", "install"]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    source = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(source, "utf-8")
    rows = tmp_path / neuron_stack.ROWS
    rows.parent.mkdir(parents=True)
    rows.write_text((ROOT / neuron_stack.ROWS).read_text("utf-8"), "utf-8")
    return Machine(tmp_path)


def setup(machine: Machine, **options: object) -> Setup:
    asked: dict[str, object] = {
        "choice": NO_SIGN,
        "run": machine,
        "root": machine.root,
        "interpreter": Interpreter("python3", (3, 12, 1), True),
        "environ": {},
        "system": "ubuntu 26.04",
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


def test_a_chip_that_is_refused_gets_no_environment(neuron: Machine) -> None:
    error = refused(neuron, choice=INF2)
    assert error.status == 3
    assert "the chip of this host is Inf2" in str(error)
    assert neuron.calls == []


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


def image(machine: Machine) -> tuple[Choice, str]:
    """Give a Trn2 below the machine's root, and where an image keeps its Python."""
    signs = Signs(str(machine.root), {"0x7364": 16}, "trn2.48xlarge")
    return choose(signs), str(machine.root / "opt/torch-neuronx/.venv/bin/python")


def plan_with(machine: Machine, module: str) -> None:
    file = machine.root / "configs/trn2.48xlarge.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"        model: {{module: {module}, flavor: 8B}}\n", "utf-8")


FORKED = "torchtitan_neuron.models.qwen3"
STACK_STEP = [
    *("torch-neuronx==2.14.3.0.*", "neuronx-cc==2.28.7631.0", "nki==0.7.0"),
    *("--extra-index-url", "https://pip.repos.neuron.amazonaws.com"),
    *("--extra-index-url", "https://download.pytorch.org/whl/cpu"),
]


def test_the_environment_of_the_image_is_used_where_none_is_active(neuron: Machine) -> None:
    choice, python = image(neuron)
    neuron.add(python, STACK)
    asked = setup(neuron, choice=choice)
    asked.carry_out()
    assert [call[0] for call in neuron.calls] == [python]
    assert neuron.pip_calls()[0][2:] == ["-e", "."]
    assert asked.which() == python


def test_the_active_environment_goes_before_the_image_s_and_a_broken_image_is_passed_over(
    neuron: Machine,
) -> None:
    choice, python = image(neuron)
    neuron.add(python, STACK)
    assert setup(neuron, choice=choice, environ=ACTIVE).which() == "opt/venv/bin/python"
    neuron.add(python, {"torch": "2.14.0"})
    assert setup(neuron, choice=choice).which() == ""


def test_a_torch_that_nobody_named_counts_only_if_it_knows_the_device(neuron: Machine) -> None:
    neuron.add("python3", {"torch": "2.14.1"})
    assert setup(neuron, choice=TRN2).which() == ""
    given = Interpreter("python3", (3, 12, 1), True, given=True)
    assert setup(neuron, choice=TRN2, interpreter=given).which() == "python3"


def test_without_an_environment_one_is_made_by_the_documented_line(
    neuron: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    choice, _ = image(neuron)
    (neuron.root / "opt/aws_neuronx_venv_pytorch").mkdir()
    setup(neuron, choice=choice).carry_out()
    assert neuron.calls[0] == ["python3", "-m", "venv", ".venv"]
    assert neuron.pip_calls()[:2] == [["pip>=24"], STACK_STEP]
    assert neuron.pip_calls()[2][2:] == ["-e", "."]
    assert len(neuron.calls) == 4
    assert "torch-neuronx==2.14.3.0.1" in neuron.constraints
    said = capsys.readouterr().out
    assert "aws_neuronx_venv_pytorch is of the legacy lineage" in said
    assert said.index("is for this Python and ubuntu 26.04") < said.index("$ python3 -m venv")
    assert "pip install torch-neuronx==2.14.3.0.*" in said.replace("'", "")
    neuron.calls.clear()
    again = setup(neuron, choice=choice)
    again.carry_out()
    assert (neuron.calls, again.which()) == ([], VENV_PYTHON)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"system": "ubuntu 22.04"}, "os_unsupported"),
        ({"system": "debian 12"}, "os_unsupported"),
        ({"system": ""}, "os_unsupported"),
        ({"interpreter": Interpreter("python3", (3, 11, 2), True)}, "python_unsupported"),
        ({"interpreter": Interpreter("python3", (3, 9, 2), True)}, "cannot run trn-validate"),
    ],
)
def test_outside_the_matrix_nothing_is_installed_and_the_error_has_a_name(
    neuron: Machine, options: dict[str, object], name: str
) -> None:
    error = refused(neuron, choice=TRN2, **options)
    assert error.status == 2
    assert name in str(error)
    assert neuron.calls == []


def test_a_system_that_documents_disagree_about_is_tried_and_said(
    neuron: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    setup(neuron, choice=TRN2, system="ubuntu 24.04").carry_out()
    assert STACK_STEP in neuron.pip_calls()
    said = capsys.readouterr().out
    assert "documents_contradict: ubuntu 24.04: wheels for Ubuntu 26.04 alone" in said


def test_a_venv_with_another_torch_is_refused_and_left_as_it_is(neuron: Machine) -> None:
    setup(neuron).carry_out()
    neuron.add(VENV_PYTHON, {"torch": "2.14.1"})
    neuron.calls.clear()
    error = refused(neuron, choice=TRN2)
    assert error.status == 2
    assert "make distclean" in str(error)
    assert neuron.calls == []


def test_a_venv_that_was_left_half_made_is_filled(neuron: Machine) -> None:
    neuron.fails = "torch-neuronx"
    assert "ended with status 1: the Neuron packages" in str(refused(neuron, choice=TRN2))
    neuron.fails = ""
    neuron.calls.clear()
    setup(neuron, choice=TRN2).carry_out()
    assert neuron.pip_calls()[:2] == [["pip>=24"], STACK_STEP]
    assert [call[1:3] for call in neuron.calls].count(["-m", "venv"]) == 0


def test_a_line_that_brought_no_torch_neuronx_is_not_taken_for_done(neuron: Machine) -> None:
    def bring_nothing(argv: Sequence[str], quiet: bool) -> Answer:
        if quiet or argv[1:3] == ["-m", "venv"]:
            return neuron(argv, quiet)
        return Answer(0)

    assert "torch_neuronx is not there" in str(refused(neuron, choice=TRN2, run=bring_nothing))


def test_a_rehearsal_in_an_environment_for_the_device_replaces_no_torch(neuron: Machine) -> None:
    setup(neuron, choice=TRN2).carry_out()
    neuron.calls.clear()
    asked = setup(neuron, choice=TRN2, target="cpu", extras=("dev",))
    asked.carry_out()
    assert [call[4:5] + call[6:] for call in neuron.calls] == [["-c", "-e", ".[dev]"]]
    assert asked.which() == VENV_PYTHON


def test_the_fork_is_installed_at_one_revision_when_the_plan_asks_for_it(
    neuron: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_with(neuron, FORKED)
    setup(neuron, choice=TRN2, environ=ACTIVE).carry_out()
    folder = str(neuron.root / "opt/venv/src/torchtitan-neuron")
    assert neuron.calls[1:3] == [
        ["git", "clone", "https://github.com/aws-neuron/torchtitan-neuron.git", folder],
        ["git", "-C", folder, "checkout", "--detach", neuron_stack.FORK_REVISION],
    ]
    assert [call[2:] for call in neuron.pip_calls()[1:]] == [
        ["-r", f"{folder}/requirements.txt"],
        ["-e", folder],
    ]
    assert all(call[0] == "-c" for call in neuron.pip_calls())
    assert "torch==2.14.0+cpu" in neuron.constraints
    assert "which is a guess: name another with TITAN_REVISION=" in capsys.readouterr().out
    neuron.calls.clear()
    setup(neuron, choice=TRN2, environ=ACTIVE).carry_out()
    assert neuron.calls == []


def test_a_revision_that_is_named_is_taken_and_a_clone_is_used_again(
    neuron: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_with(neuron, FORKED)
    (neuron.root / "opt/venv/src/torchtitan-neuron/.git").mkdir(parents=True)
    setup(neuron, choice=TRN2, environ=ACTIVE, titan_revision="abc123").carry_out()
    assert [call[3:] for call in neuron.calls if call[0] == "git"] == [
        ["fetch", "--tags", "origin"],
        ["checkout", "--detach", "abc123"],
    ]
    assert "guess" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("torchtitan.models.qwen3", {}),
        (FORKED, {"titan_revision": "none"}),
        (FORKED, {"target": "cpu"}),
        (FORKED, {"target": "absent"}),
    ],
)
def test_no_fork_is_installed_that_nobody_asks_for(
    neuron: Machine, module: str, options: dict[str, object]
) -> None:
    plan_with(neuron, module)
    setup(neuron, choice=TRN2, environ=ACTIVE, **options).carry_out()
    assert [call for call in neuron.calls if "torchtitan-neuron" in " ".join(call)] == []


@pytest.mark.parametrize("there", [{"torchtitan": "0.3.0"}, {"torchtitan-neuron": "0.2.2"}])
def test_a_torchtitan_that_is_there_is_never_replaced(
    neuron: Machine, there: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan_with(neuron, FORKED)
    neuron.add("opt/venv/bin/python", STACK | there)
    setup(neuron, choice=TRN2, environ=ACTIVE).carry_out()
    assert len(neuron.calls) == 1
    ((name, version),) = there.items()
    assert f"{name} {version} is there and stays" in capsys.readouterr().out


def test_a_revision_that_is_not_there_fails_after_our_own_packages_are_in(neuron: Machine) -> None:
    plan_with(neuron, FORKED)
    neuron.fails = "checkout"
    error = refused(neuron, choice=TRN2, environ=ACTIVE)
    assert "ended with status 1: revision v0.2.2+neuron.1" in str(error)
    assert "none to leave it out" in str(error)
    assert neuron.pip_calls()[0][2:] == ["-e", "."]
    assert not (neuron.root / "opt/venv" / STAMP).exists()


def test_a_fork_that_changes_the_stack_is_a_loud_failure(neuron: Machine) -> None:
    plan_with(neuron, FORKED)

    def harmful(argv: Sequence[str], quiet: bool) -> Answer:
        if argv[-2:-1] == ["-r"]:
            neuron.harm = {"torch": "2.14.1"}
        return neuron(argv, quiet)

    error = refused(neuron, choice=TRN2, environ=ACTIVE, run=harmful)
    assert "HAVE CHANGED" in str(error)
    assert "torch: 2.14.0+cpu -> 2.14.1" in str(error)


def test_the_row_that_is_installed_is_the_one_that_the_checks_read() -> None:
    text = (ROOT / neuron_stack.ROWS).read_text("utf-8")
    known = releases.load()
    row = neuron_stack.read_row(text)
    release = next(r for r in known.releases if r.sdk == neuron_stack.RELEASE)
    assert {name: tuple(found) for name, found in row.versions.items()} == release.versions
    assert (tuple(row.python), tuple(row.os)) == (release.python, release.os)
    doubted = {v: c.said for c in known.contradictions if c.sdk == release.sdk for v in c.values}
    assert {value: tuple(said) for value, said in row.doubts.items()} == doubted
    assert "ubuntu 24.04" in doubted
    for other in ("2.32", "9.99"):
        with pytest.raises(SetupError, match="no whole row"):
            neuron_stack.read_row(text, other)


def test_the_system_is_read_as_the_checks_read_it(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    assert neuron_stack.read_system(release) == ""
    release.write_text('NAME="Ubuntu"\nVERSION_ID="26.04"\nID=ubuntu\n')
    assert neuron_stack.read_system(release) == "ubuntu 26.04"
    if Path("/etc/os-release").exists():
        assert neuron_stack.read_system() == system()


def test_the_plans_for_a_trn2_ask_for_the_fork_and_the_one_for_the_cpu_does_not() -> None:
    assert neuron_stack.plan_asks(ROOT, "trn2.3xlarge")
    assert neuron_stack.plan_asks(ROOT, "trn2.48xlarge")
    assert not neuron_stack.plan_asks(ROOT, "cpu")


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
    for name in ("setup.py", "environment.py", "vendor_setup.py", "neuron_stack.py"):
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


def unsupported(row: object, version: object, where: object, system: str) -> str:
    raise SetupError("os_unsupported", 2)


def test_the_command_passes_the_exit_status_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "sys/devices/virtual/dmi/id/product_name"
    names.parent.mkdir(parents=True)
    names.write_text("trn2.48xlarge\n")
    monkeypatch.setenv("TRN_VALIDATE_HOST_ROOT", str(tmp_path))
    monkeypatch.setattr(Setup, "_active", lambda self: None)
    monkeypatch.setattr(Setup, "_venv", lambda self: None)
    monkeypatch.setattr(neuron_stack, "check_matrix", unsupported)
    assert main(["--titan-revision", "none"]) == 2
    assert "os_unsupported" in capsys.readouterr().err
    assert main(["--which"]) == 3
    assert main(["--which", "--target", "cpu"]) == 0
