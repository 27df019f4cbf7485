"""Build the rehearsal device into a folder of its own, and run a command with it on the path.

    python -m scripts.rehearsal [OPTION]...        the pipeline on configs/rehearsal.yaml
    python -m scripts.rehearsal -- [ARGUMENT]...   what Python is given instead

The device is installed nowhere: what is set here, for that command alone, is PYTHONPATH and the
host root.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from trn_validate.target import HOST_ROOT

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "rehearsal"
BUILT = ROOT / "build" / "rehearsal"
INSTANCE = "trn2.3xlarge"
PIPELINE = ("pipeline.py", "run", "--config", "configs/rehearsal.yaml")
_SUFFIXES = (".py", ".toml", ".h", ".cpp")


def main(arguments: Sequence[str]) -> int:
    """Build what is not built yet, and become the command."""
    try:
        folder = build()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    host = folder / "host"
    if not host.is_dir():
        make_host(folder, host)
    environment = surroundings(folder, host)
    print(f"rehearsal device in {folder}, host root {host}", file=sys.stderr)
    os.chdir(ROOT)
    return os.execve(sys.executable, [sys.executable, *command(arguments)], environment)


def command(arguments: Sequence[str]) -> tuple[str, ...]:
    """What Python is given: all after ``--``, or the pipeline with these options."""
    if arguments and arguments[0] == "--":
        return tuple(arguments[1:])
    return (*PIPELINE, *arguments)


def build(built: Path = BUILT) -> Path:
    """The folder of the device that these sources and this torch give; it is made once.

    Raises:
        RuntimeError: the compiler or the installer failed; the message has its last lines.
    """
    folder = built / digest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (built / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            print("building the rehearsal device, which takes half a minute", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=built) as made:
                _install(Path(made))
                # Moved as a whole, so that a folder that is there is complete.
                Path(made, "whole").rename(folder)
    return folder


def _install(made: Path) -> None:
    # The sources stay as they are: setuptools builds beside what it is given.
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    copy = shutil.copytree(SOURCES, made / "sources", ignore=ignored)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    target = ["--disable-pip-version-check", "--target", str(made / "whole" / "site")]
    # Another backend that loads by itself has no part in a build.
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *target, str(copy)],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise RuntimeError(f"the rehearsal device could not be built:\n{last}")


def digest() -> str:
    """What the device is made of: its sources, the torch that it is built for, this Python."""
    found = hashlib.sha256(f"{sys.executable} {sys.version} {metadata.version('torch')}".encode())
    for file in sorted(SOURCES.rglob("*")):
        if file.suffix in _SUFFIXES and "build" not in file.relative_to(SOURCES).parts:
            found.update(str(file.relative_to(SOURCES)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]


def surroundings(
    folder: Path, host: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of a command that finds the device, and the host below ``host``."""
    path = os.pathsep.join((str(folder / "site"), str(ROOT)))
    return {**environment, "PYTHONPATH": path, HOST_ROOT: str(host)}


def make_host(folder: Path, host: Path, instance: str = INSTANCE) -> None:
    """Make the files and tools of an instance below ``host``."""
    subprocess.run(
        [sys.executable, "-m", "torch_neuron_rehearsal.host", str(host), instance],
        env=surroundings(folder, host),
        stdin=subprocess.DEVNULL,
        check=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
