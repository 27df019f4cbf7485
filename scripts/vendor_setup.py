"""Set-up where the torch has to be the vendor's: find, make or complete such an environment.

Standard library only, and Python 3.7 can run it; see :mod:`scripts.setup`.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scripts import neuron_stack
from scripts.environment import (
    ROOT,
    Found,
    Interpreter,
    SetupError,
    Stamp,
    check_python,
    probe,
    run,
)
from trn_validate.target import CPU, Choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scripts.environment import Runner

VENV, VENV_PYTHON = ".venv", ".venv/bin/python"
NO_DEVICE = (CPU, "rehearsal")


def say(text: str) -> None:
    """Print at once: what a child prints next has to come after it."""
    print(text, flush=True)


@dataclass
class VendorSetup:
    """One set-up: for which host, with which extras, through which runner.

    This part serves an environment whose torch is the vendor's.
    """

    choice: Choice
    run: Runner = run
    extras: tuple[str, ...] = ()
    torch_index: str = ""
    target: str = ""
    titan_revision: str = neuron_stack.FORK_REVISION
    root: Path = ROOT
    interpreter: Interpreter = field(default_factory=Interpreter)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    system: str = field(default_factory=neuron_stack.read_system)

    def _own(self) -> bool:
        return self.target in NO_DEVICE or self.choice.target == CPU

    def _active(self) -> Found | None:
        """Find the environment to use on a Neuron host; what a person chose goes first."""
        virtual, mine = self.environ.get("VIRTUAL_ENV"), self.interpreter.executable
        chosen = [mine] if self.interpreter.given else []
        chosen += [f"{virtual}/bin/python"] if virtual else []
        for python in dict.fromkeys(chosen):
            found = probe(python, self.run)
            if found and found.torch:
                return found
        # Nobody named these, so a torch alone, such as a rehearsal's, is not enough.
        for python in (mine, str(self._image_python())):
            found = probe(python, self.run)
            if found and found.native:
                return found
        own = self._venv()
        return own if own and own.native else None

    def _venv(self) -> Found | None:
        there = (self.root / VENV_PYTHON).exists()
        return probe(VENV_PYTHON, self.run) if there else None

    def _image_python(self) -> Path:
        return Path(self.choice.signs.host_root) / neuron_stack.IMAGE_PYTHON

    def _looked(self) -> str:
        """Say where an environment was looked for, and which of another lineage were seen."""
        opt = Path(self.choice.signs.host_root) / "opt"
        legacy = [f"{path} is of the legacy lineage" for path in opt.glob("aws_neuron*_venv_*")]
        virtual = self.environ.get("VIRTUAL_ENV") or "none is active"
        seen = [virtual, self.interpreter.executable, str(self._image_python()), *sorted(legacy)]
        return ", ".join(seen)

    def _make_stack(self) -> Found:
        """Make .venv with the vendor's packages; nothing is done before the matrix allows it."""
        if self.choice.target is None:
            raise SetupError(self.choice.refusal, 3)
        row = neuron_stack.read_row((self.root / neuron_stack.ROWS).read_text("utf-8"))
        left = self._venv()
        if left and left.torch:
            raise SetupError(
                f"no environment with torch-neuronx is there: {self._looked()}. .venv has another "
                "torch, which no set-up replaces. Remove it with: make distclean",
                2,
            )
        version, where = self.interpreter.version, self.interpreter.executable
        if left:
            version, where = left.version, VENV
        check_python(version, where)
        say(f"set-up: no environment with torch-neuronx is there: {self._looked()}")
        doubt = neuron_stack.check_matrix(row, version, where, self.system)
        say(f"set-up: release {neuron_stack.RELEASE} is for this Python and {self.system}")
        if doubt:
            say(f"set-up: {doubt}")
        if left is None:
            self._make_own()
        self._step("pip 24 or newer", [VENV_PYTHON, "-m", "pip", "install", "pip>=24"])
        self._step(*neuron_stack.stack_step(VENV_PYTHON, row))
        made = self._venv()
        if made is None or not made.native:
            raise SetupError("the Neuron packages were installed, and torch_neuronx is not there")
        return made

    def _complete(self, found: Found) -> None:
        """Add what is missing to an environment whose stack has to stay as it is."""
        check_python(found.version, found.python)
        stamp = Stamp(Path(found.prefix), self.root)
        wanted = (*self.extras, *self._fork_marks())
        if stamp.covers(wanted, ""):
            return
        if not found.pip:
            raise SetupError(f"{found.prefix} has no pip; try: {found.python} -m ensurepip", 2)
        stamp.forget()
        pins = [f"{name}=={version}" for name, version in found.versions.items() if version]
        say(f"set-up: in {found.prefix} these stay as they are: {', '.join(pins) or 'none'}")
        with tempfile.TemporaryDirectory() as folder:
            constraints = Path(folder) / "constraints.txt"
            constraints.write_text("".join(f"{pin}\n" for pin in pins), "utf-8")
            try:
                pip = [found.python, "-m", "pip", "install", "-c", str(constraints)]
                self._step("trn-validate's own dependencies", [*pip, "-e", editable(self.extras)])
            finally:
                self._compare(found)
            if self._fork_marks():
                self._add_fork(found, str(constraints))
        self._remember(stamp, wanted)

    def _fork_marks(self) -> tuple[str, ...]:
        """What the stamp remembers of the fork; nothing where no plan asks for it."""
        target = self.target or self.choice.target or ""
        asked = self.titan_revision != neuron_stack.NO_FORK
        if self._own() or not asked or not neuron_stack.plan_asks(self.root, target):
            return ()
        return (f"{neuron_stack.FORK}@{self.titan_revision}",)

    def _add_fork(self, found: Found, constraints: str) -> None:
        """Install the vendor's fork of torchtitan, unless a torchtitan is there already."""
        held = [n for n in neuron_stack.TITANS if found.versions.get(n)]
        if found.fork or held:
            what = ", ".join(f"{name} {found.versions[name]}" for name in held) or "the fork"
            say(f"set-up: {what} is there and stays; no torchtitan is installed beside it")
            return
        folder = Path(found.prefix) / "src" / neuron_stack.FORK
        try:
            steps = neuron_stack.fork_steps(found.python, folder, self.titan_revision, constraints)
            for what, argv in steps:
                self._step(what, argv)
        finally:
            self._compare(found, may_come=neuron_stack.TITANS)

    def _compare(self, before: Found, may_come: tuple[str, ...] = ()) -> None:
        after = probe(before.python, self.run)
        now = after.versions if after else {}
        changed = [
            f"  {name}: {old or 'absent'} -> {now.get(name) or 'absent'}"
            for name, old in before.versions.items()
            if now.get(name) != old and not (old is None and name in may_come)
        ]
        if changed:
            listing = "\n".join(changed)
            raise SetupError(
                f"PACKAGES THAT HAD TO STAY AS THEY WERE HAVE CHANGED in {before.prefix}:\n"
                f"{listing}\nPut them back before anything is measured there."
            )

    def _make_own(self) -> None:
        version, executable = self.interpreter.version, self.interpreter.executable
        check_python(version, executable)
        if not self.interpreter.ensurepip:
            package = f"python{version[0]}.{version[1]}-venv"
            raise SetupError(
                f"{executable} cannot make an environment: its ensurepip is missing. "
                f"On Debian or Ubuntu: apt-get install {package} (or python3-venv)",
                2,
            )
        # What is there and does not run has lost its Python, and cannot be repaired in place.
        clear = ["--clear"] if (self.root / VENV).exists() else []
        self._step(f"make {VENV}", [executable, "-m", "venv", *clear, VENV])

    def _remember(self, stamp: Stamp, extras: tuple[str, ...]) -> None:
        why = stamp.record(extras, self.torch_index)
        say(f"set-up: done, to be repeated next time ({why})" if why else "set-up: done")

    def _step(self, what: str, argv: list[str]) -> None:
        say(f"set-up: {what}\n  $ {' '.join(map(shlex.quote, argv))}")
        status = self.run(argv, False).status
        if status:
            raise SetupError(f"this step ended with status {status}: {what}; see the lines above")


def editable(extras: tuple[str, ...]) -> str:
    """The checkout as pip is asked to install it."""
    return f".[{','.join(extras)}]" if extras else "."
