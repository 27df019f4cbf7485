"""A real Slurm of two nodes on one machine, for the tests: munged, slurmctld and two slurmd.

::

    python -m scripts.slurm_cluster install        Debian's packages, where that is allowed
    python -m scripts.slurm_cluster start DIR      then: export SLURM_CONF=DIR/slurm.conf
    python -m scripts.slurm_cluster stop DIR

Everything is in DIR and belongs to the user who starts it; no file of the system is touched.
``config_overrides`` lets a node claim more CPUs than the machine has, without which both nodes
are invalid (seen with Slurm 22.05). What is in DIR/env/<node> is exported to every task there.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

NODES = ("trna", "trnb")
PACKAGES = ("slurm-wlm", "munge")
_COMMANDS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "sinfo")
_SYSTEM = "/usr/sbin"
"""Where Debian keeps the daemons; an ordinary user's PATH lacks it."""

_CONFIGURATION = """\
ClusterName=trnvalidate
SlurmctldHost=localhost
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog.sh
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=8000\n"
)
_PARTITION = (
    "PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n"
)
_PROLOG = """\
#!/bin/sh
# What it prints as `export NAME=value` is set for the task (TaskProlog of slurm.conf(5)).
file="{folder}/env/$SLURMD_NODENAME"
if [ -f "$file" ]; then sed 's/^/export /' "$file"; fi
"""


def why_not() -> str:
    """Why the cluster cannot be started here; empty where it can."""
    missing = [name for name in _COMMANDS if shutil.which(name, path=_path()) is None]
    return f"not installed: {', '.join(missing)} (make test-slurm)" if missing else ""


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{_SYSTEM}"


class Cluster:
    """The daemons, and the files by which a test changes a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.env = self.folder / "env"
        self.configuration = self.folder / "slurm.conf"

    @property
    def variables(self) -> dict[str, str]:
        """What a command needs to talk to it."""
        return {"SLURM_CONF": str(self.configuration), "PATH": _path()}

    def start(self) -> None:
        """Start every daemon and wait until both nodes are idle.

        Raises:
            RuntimeError: they do not come up; the folder has their logs.
        """
        for name in ("state", "spool", "env"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._write()
        self._start_munge()
        self._run("slurmctld")
        for name in NODES:
            self.start_node(name)
        self.wait_idle()

    def start_node(self, name: str, *, inside: tuple[str, ...] = ()) -> None:
        """Start a node's daemon, through the command ``inside`` where one is given."""
        self._run(*inside, "slurmd", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill a node's daemon; what it started lives on."""
        self._signal(name, signal.SIGKILL)

    def stop(self, seconds: float = 10.0) -> None:
        """End every daemon, and what they started and left."""
        for name in (*NODES, "slurmctld", "munged"):
            self._signal(name, signal.SIGTERM)
        # A slurmstepd outlives its slurmd as long as its step does.
        _, left = psutil.wait_procs(self.processes(), seconds)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, seconds)

    def processes(self) -> list[psutil.Process]:
        """The living daemons of this cluster: all were given its configuration."""
        own = str(self.configuration)
        return [
            one
            for one in psutil.process_iter(["name", "environ"])
            # A shell that speaks to the cluster has the variable too.
            if one.info["name"].startswith(("slurm", "munged"))
            and (one.info["environ"] or {}).get("SLURM_CONF") == own
        ]

    def ask(self, *argv: str) -> str:
        """What a command of Slurm's prints."""
        return self._run(*argv).stdout

    def wait_idle(self, seconds: float = 60.0) -> None:
        """Wait until no job is on any node.

        Raises:
            RuntimeError: they are not idle in time.
        """
        until = time.monotonic() + seconds
        while self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != str(len(NODES)):
            if time.monotonic() > until:
                raise RuntimeError(f"the nodes are not idle: {self.ask('sinfo')}")
            time.sleep(0.2)

    def _write(self) -> None:
        ports = _free_ports(1 + len(NODES))
        fields = {"folder": self.folder, "user": getpass.getuser(), "host": socket.gethostname()}
        text = _CONFIGURATION.format(controller=ports[0], **fields)
        for name, port in zip(NODES, ports[1:], strict=True):
            text += _NODE.format(name=name, port=port, **fields)
        text += _PARTITION.format(names=",".join(NODES))
        self.configuration.write_text(text)
        prolog = self.folder / "prolog.sh"
        prolog.write_text(_PROLOG.format(**fields))
        prolog.chmod(0o755)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.folder.chmod(0o755)
        places = {"socket": "socket", "key-file": "key", "log-file": "log", "seed-file": "seed"}
        options = [f"--{name}={self.folder}/munge.{end}" for name, end in places.items()]
        # --force: it complains of parents that others may write to, such as a temporary folder.
        self._run("munged", "--force", *options, f"--pid-file={self.folder}/munged.pid")

    def _signal(self, name: str, signum: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / f"{name}.pid").read_text()), signum)

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        environment: Mapping[str, str] = os.environ | self.variables
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
        return done


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def install() -> str:
    """Install the packages where this user may; gives why not, or nothing."""
    if not why_not():
        return ""
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        return f"{why_not()}; packages of Debian: {' '.join(PACKAGES)}"
    apt = ("apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES)
    for argv in (("apt-get", "update"), apt):
        done = subprocess.run(argv, stdout=sys.stderr, check=False)
        if done.returncode:
            return f"{' '.join(argv)} failed with {done.returncode}"
    return why_not()


def main(arguments: list[str]) -> int:
    """Do what the command line says; gives the exit status."""
    match arguments:
        case ["install"]:
            reason = install()
            if reason:
                print(f"no Slurm here: {reason}", file=sys.stderr)
        case ["start", folder]:
            cluster = Cluster(Path(folder))
            cluster.start()
            print(f"export SLURM_CONF={cluster.configuration}")
        case ["stop", folder]:
            Cluster(Path(folder)).stop()
        case _:
            print("usage: slurm_cluster install | start DIR | stop DIR", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
