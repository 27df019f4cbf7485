"""Make or complete the environment that trn-validate runs in; make calls it.

    python3 -m scripts.setup [--extra NAME]... [--torch-index URL] [--target NAME]
    python3 -m scripts.setup --which      print the Python of that environment, change nothing

On a host with no Neuron sign, or for a target that needs no device, that is ``.venv``,
filled from pyproject.toml. On any other host it is the active environment if that has a
torch: it receives our own dependencies under constraints that pin the vendor's stack, and
the versions are compared afterwards, since replacing one spoils all that is measured later.

Standard library only, and Python 3.7 can run it: an old Python has to get a sentence,
not a syntax error. Exit status: 0 done; 1 a step failed; 2 this cannot be carried out;
3 a Neuron host without an environment that has a torch.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
from trn_validate.target import CPU, Choice, choose, host_root, read_signs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scripts.environment import Runner

VENV, VENV_PYTHON = ".venv", ".venv/bin/python"
NO_DEVICE = (CPU, "rehearsal")
BY_HAND = """\
This set-up does not install the Neuron packages yet. Do it once by hand, with Python 3.12 to 3.14:
  python3 -m venv .venv && . .venv/bin/activate
  pip install "torch-neuronx==2.14.*" "neuronx-cc==2.*" nki \\
    --extra-index-url https://pip.repos.neuron.amazonaws.com \\
    --extra-index-url https://download.pytorch.org/whl/cpu
or activate the environment that the machine image brought. Then give the same command again.
TARGET=cpu asks for a rehearsal on the CPU instead, which is never adoption evidence."""


def say(text: str) -> None:
    """Print at once: what a child prints next has to come after it."""
    print(text, flush=True)


def torch_requirement(pyproject: str) -> str:
    """Take torch's requirement out of pyproject.toml, which an old Python cannot parse."""
    wanted = re.search(r'"(torch[<>=!~][^"]*)"', pyproject)
    if wanted is None:
        raise SetupError("pyproject.toml names no torch.", 2)
    return wanted[1]


@dataclass
class Setup:
    """One set-up: for which host, with which extras, through which runner."""

    choice: Choice
    run: Runner = run
    extras: tuple[str, ...] = ()
    torch_index: str = ""
    target: str = ""
    root: Path = ROOT
    interpreter: Interpreter = field(default_factory=Interpreter)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def which(self) -> str:
        """Name the Python to use, or nothing when there is none yet."""
        if self._own():
            return VENV_PYTHON
        active = self._active()
        return active.python if active else ""

    def carry_out(self) -> None:
        """Bring the environment up to date; say each step before it is taken."""
        if self._own():
            self._fill_own(("cpu", *self.extras))
        else:
            self._complete_active(self.extras)

    def _own(self) -> bool:
        return self.target in NO_DEVICE or self.choice.target == CPU

    def _fill_own(self, extras: tuple[str, ...]) -> None:
        stamp = Stamp(self.root / VENV, self.root)
        present = (self.root / VENV_PYTHON).exists()
        if present and stamp.covers(extras, self.torch_index):
            return
        found = probe(VENV_PYTHON, self.run) if present else None
        if found is None:
            self._make_own()
        else:
            check_python(found.version, VENV)
            if not found.pip:
                raise SetupError(".venv has no pip. Remove it with: make distclean")
        stamp.forget()
        pip = [VENV_PYTHON, "-m", "pip", "install"]
        self._step("pip 24 or newer", [*pip, "pip>=24"])
        if self.torch_index:
            if found and found.torch:
                say("set-up: the torch in .venv stays; make distclean first to change its index")
            torch = torch_requirement((self.root / "pyproject.toml").read_text("utf-8"))
            self._step("torch from TORCH_INDEX", [*pip, "--index-url", self.torch_index, torch])
        self._step("trn-validate and what it needs", [*pip, "-e", _editable(extras)])
        self._remember(stamp, extras)

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

    def _complete_active(self, extras: tuple[str, ...]) -> None:
        found = self._active()
        if found is None:
            raise SetupError(self._no_torch(), 3)
        check_python(found.version, found.python)
        stamp = Stamp(Path(found.prefix), self.root)
        if stamp.covers(extras, ""):
            return
        if not found.pip:
            raise SetupError(f"{found.prefix} has no pip; try: {found.python} -m ensurepip", 2)
        stamp.forget()
        try:
            self._install_pinned(found, extras)
        finally:
            self._compare(found)
        self._remember(stamp, extras)

    def _install_pinned(self, found: Found, extras: tuple[str, ...]) -> None:
        pins = [f"{name}=={version}" for name, version in found.versions.items() if version]
        say(f"set-up: in {found.prefix} these stay as they are: {', '.join(pins) or 'none'}")
        with tempfile.TemporaryDirectory() as folder:
            constraints = Path(folder) / "constraints.txt"
            constraints.write_text("".join(f"{pin}\n" for pin in pins), "utf-8")
            pip = [found.python, "-m", "pip", "install", "-c", str(constraints)]
            self._step("trn-validate's own dependencies", [*pip, "-e", _editable(extras)])

    def _compare(self, before: Found) -> None:
        after = probe(before.python, self.run)
        now = after.versions if after else {}
        changed = [
            f"  {name}: {old or 'absent'} -> {now.get(name) or 'absent'}"
            for name, old in before.versions.items()
            if now.get(name) != old
        ]
        if changed:
            listing = "\n".join(changed)
            raise SetupError(
                f"PACKAGES THAT HAD TO STAY AS THEY WERE HAVE CHANGED in {before.prefix}:\n"
                f"{listing}\nPut them back before anything is measured there."
            )

    def _active(self) -> Found | None:
        virtual, mine = self.environ.get("VIRTUAL_ENV"), self.interpreter.executable
        candidates = [mine] if self.interpreter.given else []
        candidates += [f"{virtual}/bin/python"] if virtual else []
        for python in dict.fromkeys([*candidates, mine]):
            found = probe(python, self.run)
            if found and found.torch:
                return found
        # An earlier rehearsal may have left a .venv with a torch that knows no device.
        own = probe(VENV_PYTHON, self.run) if (self.root / VENV_PYTHON).exists() else None
        return own if own and own.native else None

    def _no_torch(self) -> str:
        signs = self.choice.signs
        opt = Path(signs.host_root) / "opt"
        brought = [*opt.glob("aws_neuron*_venv_*"), *opt.glob("torch-neuronx/.venv")]
        lines = [f"no active environment has a torch. This host shows: {signs.show()}"]
        lines += [self.choice.refusal] if self.choice.refusal else []
        lines += [f"The image brought: {path}" for path in sorted(brought)]
        return "\n".join([*lines, BY_HAND])

    def _remember(self, stamp: Stamp, extras: tuple[str, ...]) -> None:
        why = stamp.record(extras, self.torch_index)
        say(f"set-up: done, to be repeated next time ({why})" if why else "set-up: done")

    def _step(self, what: str, argv: list[str]) -> None:
        say(f"set-up: {what}\n  $ {' '.join(map(shlex.quote, argv))}")
        status = self.run(argv, False).status
        if status:
            raise SetupError(f"this step ended with status {status}: {what}; see the lines above")


def _editable(extras: tuple[str, ...]) -> str:
    return f".[{','.join(extras)}]" if extras else "."


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up as asked, or answer ``--which``."""
    parser = argparse.ArgumentParser(description="Make the environment that trn-validate runs in.")
    parser.add_argument("--extra", action="append", default=[], help="an extra to install")
    parser.add_argument("--torch-index", default="", help="package index for torch alone")
    parser.add_argument("--target", default="", help="the target that was asked for")
    parser.add_argument("--python-given", action="store_true", help="a person named this Python")
    parser.add_argument("--which", action="store_true", help="only name the Python to use")
    asked = parser.parse_args(arguments)
    setup = Setup(
        choose(read_signs(host_root())),
        extras=tuple(asked.extra),
        torch_index=asked.torch_index,
        target=asked.target,
        interpreter=Interpreter(given=asked.python_given),
    )
    try:
        if asked.which:
            python = setup.which()
            print(python)
            return 0 if python else 3
        setup.carry_out()
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
