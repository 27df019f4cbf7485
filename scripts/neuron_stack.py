"""How the vendor's packages are installed into an environment that has none of them.

The versions are those of one row of ``trn_validate/neuron/data/releases.yaml``. Nothing here was
run on a Neuron host. What no public document or index confirmed is labelled ``Guess:``, and
``pipeline.py answers`` lists it.

Standard library only, and Python 3.7 can run it; see :mod:`scripts.setup`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.environment import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Step = tuple[str, list[str]]
    """What it does, for people, and its argument vector."""

RELEASE = "2.33"
"""The row of releases.yaml that is installed: the first release whose native package is public."""

ROWS = "trn_validate/neuron/data/releases.yaml"

PACKAGES = ("torch-neuronx", "neuronx-cc", "nki")
"""Of the documented install line (the vendor's setup/pytorch/update-manual of 2.33).

Guess: the index has exactly the versions of the row. The documented line asks for
torch-neuronx==2.14.*, neuronx-cc==2.* and any nki, and the index could not be read.
"""

INDEXES = ("https://pip.repos.neuron.amazonaws.com", "https://download.pytorch.org/whl/cpu")
"""Extra indexes of the same line; on the public one these packages are placeholders."""

FORK = "torchtitan-neuron"
TITANS = ("torchtitan", FORK)
"""Distributions that may bring a torchtitan; where either is, no other is installed."""

FORK_URL = "https://github.com/aws-neuron/torchtitan-neuron.git"
"""Of the vendor's guide (training/torchtitan/get-started/setup-torchtitan-neuron)."""

FORK_REVISION = "v0.2.2+neuron.1"
"""Guess: the repository tags its releases so. Its version is 0.2.2+neuron.1 by the release notes
of 2.33; the guide takes the newest revision, and neither tags nor commits could be read.
"""

NO_FORK = "none"
"""Asked for instead of a revision by whoever installs the fork by hand."""

IMAGE_PYTHON = "opt/torch-neuronx/.venv/bin/python"
"""Below the host root: where users found the environment of the vendor's native images."""


@dataclass(frozen=True)
class Row:
    """One release, as far as an installation needs it."""

    versions: dict[str, list[str]]
    python: list[str]
    os: list[str]
    doubts: dict[str, list[str]]
    """By value of Python or OS, what official documents say of it that contradicts."""


def read_row(text: str, sdk: str = RELEASE) -> Row:
    """Take one release out of releases.yaml, for a Python that has no reader of YAML yet.

    Raises:
        SetupError: there is no such row, or it is written otherwise.
    """
    releases, _, contradictions = text.partition("\ncontradictions:")
    row = _item(releases, sdk)
    lists = {
        key: json.loads(found) for key, found in re.findall(r"^ +([\w-]+): (\[.*?\])", row, re.M)
    }
    python, system = lists.pop("python", []), lists.pop("os", [])
    lists.pop("sources", None)
    if not all(lists.get(name) for name in PACKAGES) or not python or not system:
        raise SetupError(f"{ROWS} has no whole row of release {sdk}")
    doubts: dict[str, list[str]] = {}
    for item in re.split(r"^  - ", contradictions, flags=re.M)[1:]:
        values = re.search(r"^ +values: (\[.*\])", item, re.M)
        if item.startswith(f'sdk: "{sdk}"') and values:
            said = [json.loads(line) for line in re.findall(r'^ +- (".*")$', item, re.M)]
            doubts.update(dict.fromkeys(json.loads(values[1]), said))
    return Row(lists, python, system, doubts)


def _item(text: str, sdk: str) -> str:
    items = re.split(r"^  - sdk: ", text, flags=re.M)[1:]
    return next((item for item in items if item.startswith(f'"{sdk}"')), "")


def check_matrix(row: Row, version: Sequence[int], where: str, system: str) -> str:
    """Hold Python and the operating system against the release; give what to say of a doubt.

    Raises:
        SetupError: the release does not name one of them. Nothing was installed.
    """
    python = ".".join(map(str, version[:2]))
    if python not in row.python:
        doubt = "".join(f" ({against})" for against in [_said(row, python)] if against)
        raise SetupError(
            f"python_unsupported: release {RELEASE} of the Neuron packages is for Python "
            f"{', '.join(row.python)}, and {where} is {python}{doubt}. Nothing was installed. "
            "Name another one with PYTHON=, for example: make setup PYTHON=python3.12",
            2,
        )
    if system not in row.os:
        raise SetupError(
            f"os_unsupported: release {RELEASE} of the Neuron packages is for "
            f"{', '.join(row.os)}, and this is {system or 'unknown'}. Nothing was installed. "
            "Start from a machine image of the vendor, or activate an environment that has them",
            2,
        )
    said = _said(row, system)
    return f"documents_contradict: {system}: {said}: what happens decides" if said else ""


def _said(row: Row, value: str) -> str:
    return " against ".join(row.doubts.get(value, []))


def stack_step(python: str, row: Row) -> Step:
    """Give the documented install line, with the versions of the row."""
    wanted = [_pin(name, row.versions[name][0]) for name in PACKAGES]
    extra = [word for index in INDEXES for word in ("--extra-index-url", index)]
    return "the Neuron packages", [python, "-m", "pip", "install", *wanted, *extra]


def _pin(name: str, version: str) -> str:
    # The row has the first parts of torch-neuronx's version; a build number follows.
    return f"{name}=={version}.*" if name == "torch-neuronx" else f"{name}=={version}"


def fork_steps(python: str, folder: Path, revision: str, constraints: str) -> list[Step]:
    """Give the steps of the vendor's guide for the fork, at one revision and under constraints."""
    pip = [python, "-m", "pip", "install", "-c", constraints]
    there = (folder / ".git").is_dir()
    fetch = ["git", "-C", str(folder), "fetch", "--tags", "origin"]
    return [
        (f"the sources of {FORK}", fetch if there else ["git", "clone", FORK_URL, str(folder)]),
        (
            f"revision {revision} of {FORK}"
            + (
                ", which is a guess: name another with TITAN_REVISION=, or none to leave it out"
                if revision == FORK_REVISION
                else ""
            ),
            ["git", "-C", str(folder), "checkout", "--detach", revision],
        ),
        (f"what {FORK} needs", [*pip, "-r", str(folder / "requirements.txt")]),
        (FORK, [*pip, "-e", str(folder)]),
    ]


def plan_asks(root: Path, target: str) -> bool:
    """Whether the plan of a target trains a model of the fork."""
    try:
        text = (root / "configs" / f"{target}.yaml").read_text("utf-8")
    except OSError:
        return False
    return re.search(r"\bmodule: torchtitan_neuron\b", text) is not None


def read_system(release: Path = Path("/etc/os-release")) -> str:
    """Name and version of the operating system, such as ``ubuntu 24.04``; empty if unknown."""
    try:
        lines = release.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    held = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
    return f"{held.get('ID', '')} {held.get('VERSION_ID', '')}".strip()
