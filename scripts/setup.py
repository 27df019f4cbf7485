"""Make or complete the environment that trn-validate runs in; make calls it.

    python3 -m scripts.setup [--extra NAME]... [--torch-index URL] [--target NAME]
                             [--titan-revision REV]
    python3 -m scripts.setup --which      print the Python of that environment, change nothing

On a host with no Neuron sign, or for a target that needs no device, that is ``.venv``,
filled from pyproject.toml. On any other host it is the environment that is there: the active one
if that has a torch, or the one that the machine image brought. Where there is none, ``.venv`` is
made with the vendor's packages. Ours are installed under constraints that pin the vendor's
stack, and the versions are compared afterwards, since replacing one spoils all that is measured
later.

Standard library only, and Python 3.7 can run it: an old Python has to get a sentence,
not a syntax error. Exit status: 0 done; 1 a step failed; 2 this cannot be carried out;
3 a Neuron host that is refused, or with --which one that has no environment yet.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from scripts import neuron_stack
from scripts.environment import Interpreter, SetupError, Stamp, check_python, probe
from scripts.vendor_setup import VENV, VENV_PYTHON, VendorSetup, editable, say
from trn_validate.target import choose, host_root, read_signs

if TYPE_CHECKING:
    from collections.abc import Sequence


def torch_requirement(pyproject: str) -> str:
    """Take torch's requirement out of pyproject.toml, which an old Python cannot parse."""
    wanted = re.search(r'"(torch[<>=!~][^"]*)"', pyproject)
    if wanted is None:
        raise SetupError("pyproject.toml names no torch.", 2)
    return wanted[1]


class Setup(VendorSetup):
    """A whole set-up: also of an environment that needs no device."""

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
            self._complete(self._active() or self._make_stack())

    def _fill_own(self, extras: tuple[str, ...]) -> None:
        stamp = Stamp(self.root / VENV, self.root)
        present = (self.root / VENV_PYTHON).exists()
        if present and stamp.covers(extras, self.torch_index):
            return
        found = probe(VENV_PYTHON, self.run) if present else None
        if found and found.native:
            # Of an earlier set-up for the device: the extra cpu would replace its torch.
            self._complete(found)
            return
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
        self._step("trn-validate and what it needs", [*pip, "-e", editable(extras)])
        self._remember(stamp, extras)


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up as asked, or answer ``--which``."""
    parser = argparse.ArgumentParser(description="Make the environment that trn-validate runs in.")
    parser.add_argument("--extra", action="append", default=[], help="an extra to install")
    parser.add_argument("--torch-index", default="", help="package index for torch alone")
    parser.add_argument("--target", default="", help="the target that was asked for")
    parser.add_argument("--titan-revision", default="", help="revision of the vendor's fork")
    parser.add_argument("--python-given", action="store_true", help="a person named this Python")
    parser.add_argument("--which", action="store_true", help="only name the Python to use")
    asked = parser.parse_args(arguments)
    setup = Setup(
        choose(read_signs(host_root())),
        extras=tuple(asked.extra),
        torch_index=asked.torch_index,
        target=asked.target,
        titan_revision=asked.titan_revision or neuron_stack.FORK_REVISION,
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
