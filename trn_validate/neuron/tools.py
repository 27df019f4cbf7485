"""Asking the vendor's and the system's tools, each with a time limit and never through a shell.

Tools are looked for by absolute path first: the folder is on PATH only through profile scripts,
so under sudo, systemd or a container's entry point they would seem absent. Under a moved host
root nothing outside of it is started, since that would tell of another machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

from trn_validate.base import Record
from trn_validate.neuron.finding import Finding, found
from trn_validate.neuron.noisy import has_object

FOLDERS = ("opt/aws/neuron/bin", "opt/amazon/efa/bin", "usr/sbin", "usr/bin", "sbin", "bin")
"""Where tools are, in the order in which they are looked for."""

MOST_BYTES = 8 * 2**20
"""Of what a tool printed, this much is read: a trn2.48xlarge with every core held prints 50 kB."""

_PAUSE = 0.01
_SECONDS = 20.0
"""neuron-ls answers in under a second on a healthy host; one that hangs has to end the wait."""

FIRST_RECORD_SECONDS = 8.0
"""neuron-monitor prints its first record at once and then one every 5 s (its user guide)."""


class Output(Record):
    """How a tool answered."""

    name: str
    ended: Literal["exited", "absent", "timeout", "refused"]
    """``refused`` where the file is there and cannot be started."""
    status: int | None = None
    stdout: str = ""
    stderr: str = ""

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        return self.ended if self.status is None else f"exit status {self.status}"

    @property
    def text(self) -> str:
        """All that it printed, to be kept."""
        return "\n".join(filter(None, (self.stdout, self.stderr)))


Ask = Callable[..., Output]
"""``ask(name, *arguments, first_line=False)``: what :meth:`Tools.ask` does, or stands in for it."""


class Kept:
    """Asks for somebody, and keeps every answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.answers: dict[str, Output] = {}
        """By the command."""

    def ask(self, name: str, *arguments: str, first_line: bool = False) -> Output:
        """What the other answers."""
        output = self._ask(name, *arguments, first_line=first_line)
        self.answers[" ".join((name, *arguments))] = output
        return output

    def __str__(self) -> str:
        """All answers, as a text to be read."""
        parts = (f"$ {cmd}\n[{o.ending}]\n{o.text}\n" for cmd, o in self.answers.items())
        return "\n".join(parts)


class Tools:
    """The tools of one host."""

    def __init__(self, root: Path, seconds: float = _SECONDS) -> None:
        self.root = root
        self.seconds = seconds

    def find(self, name: str) -> Path | None:
        """Path of a tool; on the host itself PATH is the last place."""
        for folder in FOLDERS:
            path = self.root / folder / name
            if path.is_file():
                return path
        there = shutil.which(name) if self.root == Path("/") else None
        return Path(there) if there else None

    def ask(self, name: str, *arguments: str, first_line: bool = False) -> Output:
        """Start a tool and wait for its end, or with ``first_line`` for its first record alone."""
        path = self.find(name)
        if path is None:
            return Output(name=name, ended="absent")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                child = _start(path, arguments, out, err)
            except OSError as error:
                return Output(name=name, ended="refused", stderr=str(error))
            try:
                answered = self._wait(child, out, first_line)
            finally:
                status = end(child)
            if answered and first_line and status == -signal.SIGKILL:
                status = 0  # it had said enough, and was ended for that
            return Output(
                name=name,
                ended="exited" if answered else "timeout",
                status=status if answered else None,
                stdout=_read(out),
                stderr=_read(err),
            )

    def start(self, name: str) -> subprocess.Popen[bytes] | None:
        """Start a tool that goes on until :func:`end`; None where it cannot be started.

        It writes into a pipe, so that it ends by itself where this process is killed.
        """
        path = self.find(name)
        if path is None:
            return None
        with contextlib.suppress(OSError):
            return _start(path, (), subprocess.PIPE, subprocess.DEVNULL)
        return None

    def _wait(self, child: subprocess.Popen[bytes], out: IO[bytes], first_line: bool) -> bool:
        """Whether it ended, or printed the record that was asked for, within the limit."""
        until = time.monotonic() + (FIRST_RECORD_SECONDS if first_line else self.seconds)
        while not (ended := _has_ended(child)) and time.monotonic() < until:
            if first_line and has_object(_read(out)):
                return True
            time.sleep(_PAUSE)
        return ended


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    # It is not reaped yet, so that its number still names its session and nobody else's.
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, flags) is not None


def _start(
    path: Path, arguments: tuple[str, ...], out: IO[bytes] | int, err: IO[bytes] | int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def end(child: subprocess.Popen[bytes]) -> int:
    """End a tool with the helpers that it started; the whole session is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _read(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), MOST_BYTES, 0).decode("utf-8", errors="replace")


def unanswered(output: Output) -> Finding | None:
    """Why a tool gave no answer that could be read, if it gave none.

    An exit status that is not 0 is one only where nothing was printed: neuron-ls says what is
    wrong on stdout (measured by users), and its reader has to see that.
    """
    if output.ended == "absent":
        return found("tool_absent", "not found in /opt/aws/neuron/bin nor on PATH", output.name)
    if output.ended == "refused":
        return found("tool_failed", "could not be started", output.name, raw=output.text)
    if output.ended == "timeout":
        return found("tool_timeout", "did not answer in time", output.name, raw=output.text)
    if not output.stdout.strip():
        what = f"printed nothing, {output.ending}"
        return found("tool_failed", what, output.name, raw=output.text)
    return None
