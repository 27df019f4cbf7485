"""What set-up knows of an environment: how to ask one, and how to remember one.

Standard library only, and Python 3.7 can run it; see :mod:`scripts.setup`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str], bool], "Answer"]

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 14)
STAMP = "trn-validate-setup.json"

KEPT = (
    "torch",
    "torch-neuronx",
    "torchtitan",
    "torchtitan-neuron",
    "neuronx-cc",
    "nki",
    "libneuronxla",
    "nrtpy",
)
"""Distributions of the vendor's stack: no set-up may change one in an environment it was given."""

# find_spec, since importing a torch may start the device; and a folder that an uninstall
# left behind has a spec without an origin.
PROBE = """
import importlib.util as u, json, sys
try:
    from importlib.metadata import PackageNotFoundError, version
except ImportError:
    version, PackageNotFoundError = (lambda name: None), Exception
def there(name):
    spec = u.find_spec(name)
    return spec is not None and spec.origin is not None
def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({"prefix": sys.prefix, "version": sys.version_info[:3], "torch": there("torch"),
    "native": there("torch_neuronx"), "fork": there("torchtitan_neuron"), "pip": there("pip"),
    "versions": {name: installed(name) for name in sys.argv[1:]}}))
"""


class SetupError(Exception):
    """A set-up that cannot go on, with the exit status that tells how."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """How a command ended, and what it printed if that was asked for."""

    status: int
    output: str = ""


@dataclass(frozen=True)
class Found:
    """One environment, as its own Python describes it."""

    python: str
    prefix: str
    version: list[int]
    torch: bool
    native: bool
    fork: bool
    """Whether it has the vendor's fork of torchtitan."""
    pip: bool
    versions: dict[str, str | None]


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs this; ``given`` when a person named it with PYTHON=."""

    executable: str = sys.executable
    version: Sequence[int] = tuple(sys.version_info[:3])
    ensurepip: bool = importlib.util.find_spec("ensurepip") is not None
    given: bool = False


def run(argv: Sequence[str], quiet: bool) -> Answer:
    """Run one command in the checkout; ``quiet`` takes its output instead of showing it."""
    taken = subprocess.PIPE if quiet else None
    try:
        done = subprocess.run(
            argv,
            cwd=str(ROOT),
            stdin=subprocess.DEVNULL,
            stdout=taken,
            stderr=taken,
            text=True,
            check=False,
        )
    except OSError:
        return Answer(127)
    return Answer(done.returncode, done.stdout or "")


def probe(python: str, runner: Runner) -> Found | None:
    """Ask the Python of an environment about it; nothing if it does not run."""
    answer = runner([python, "-c", PROBE, *KEPT], True)
    if answer.status:
        return None
    try:
        return Found(python=python, **json.loads(answer.output))
    except (ValueError, TypeError):
        return None


def check_python(version: Sequence[int], where: str) -> None:
    """Refuse a Python outside the range that pyproject.toml allows."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return
    seen, oldest, newest = (".".join(map(str, v)) for v in (version, OLDEST, NEWEST))
    raise SetupError(
        f"Python {seen} ({where}) cannot run trn-validate, which needs {oldest} to {newest}. "
        "Name another one with PYTHON=, for example: make setup PYTHON=python3.12",
        2,
    )


class Stamp:
    """Memory of a finished set-up, kept in the environment that it describes."""

    def __init__(self, prefix: Path, root: Path) -> None:
        self.path = prefix / STAMP
        # An environment may serve several checkouts, and an editable install names one.
        self._basis = (root / "pyproject.toml").read_bytes() + str(root).encode()
        self._extras, self._index = self._read()

    def covers(self, extras: tuple[str, ...], torch_index: str) -> bool:
        """Whether all of it is installed; no index asked for accepts the one that was used."""
        return torch_index in ("", self._index) and {"", *extras} <= self._extras

    def forget(self) -> None:
        """Remove it before the first step: a half-done set-up must not count as done."""
        if self.path.exists():
            self.path.unlink()

    def record(self, extras: tuple[str, ...], torch_index: str) -> str:
        """Write down what is installed now; give the reason if that cannot be done."""
        keys = {extra: self._key(extra) for extra in sorted({"", *extras} | self._extras)}
        held = {"torch_index": torch_index or self._index, "extras": keys}
        try:
            self.path.write_text(json.dumps(held, indent=1) + "\n", "utf-8")
        except OSError as error:
            return str(error)
        return ""

    def _key(self, extra: str) -> str:
        return hashlib.sha256(self._basis + b"\0" + extra.encode()).hexdigest()

    def _read(self) -> tuple[set[str], str]:
        try:
            held = json.loads(self.path.read_text("utf-8"))
            keys = dict(held["extras"])
            return {e for e, key in keys.items() if key == self._key(e)}, str(held["torch_index"])
        except (OSError, ValueError, KeyError, TypeError):
            return set(), ""
