"""A Trn2 that is not there: the files that a host shows, and the answers of its tools.

Every change of a machine is one way in which a real one is broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trn_validate.neuron.host import HostFacts, read_host
from trn_validate.neuron.tools import Output
from trn_validate.target import TRN2_DEVICE, Choice, choose, read_signs

DATA = Path(__file__).parent / "data"
KERNEL = "6.14.0-1018-aws"
DRIVER = "2.31.7.0"
STATUSES = (
    "success",
    "timeout",
    "hw_error",
    "hw_nc_ue_error",
    "hw_repairable_hbm_ue_error",
    "generic_error",
    "execute_completed_with_error",
    "execute_completed_with_num_error",
)
"""Some of the statuses of the driver's source."""


def recorded(name: str) -> str:
    return (DATA / name).read_text("ascii")


def put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@dataclass
class Machine:
    """A healthy machine below ``root``, whose parts may be changed before it is read."""

    root: Path
    kind: str = "trn2.48xlarge"
    answers: dict[str, Output] = field(default_factory=dict)
    """By the name of the tool with its first option; another answer than the recorded one."""
    asked: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def devices(self) -> int:
        return 16 if self.kind == "trn2.48xlarge" else 1

    def build(self) -> Machine:
        """Write the files of a healthy host."""
        put(self.root / "sys/module/neuron/version", f"{DRIVER}\n")
        put(self.root / "proc/sys/kernel/osrelease", f"{KERNEL}\n")
        put(self.root / "sys/devices/virtual/dmi/id/product_name", f"{self.kind}\n")
        (self.root / "lib/modules" / KERNEL / "build").mkdir(parents=True)
        for index in range(self.devices):
            self.plug(index)
        self._recorded_answers()
        return self

    def device(self, index: int) -> Path:
        return self.root / "sys/devices/virtual/neuron_device" / f"neuron{index}"

    def plug(self, index: int) -> None:
        function = self.root / "sys/bus/pci/devices" / f"0000:{index:02x}:00.0"
        put(function / "vendor", "0x1d0f\n")
        put(function / "device", f"{TRN2_DEVICE}\n")
        put(self.root / "dev" / f"neuron{index}", "")
        folder = self.device(index)
        put(folder / "core_count", "8")
        put(folder / "reset", "")
        put(folder / "info/architecture/instance_type", "Trn2\n")
        for name in ("mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_corrected"):
            put(folder / "stats/hardware" / name, "0\n")
        put(folder / "stats/hardware/sram_ecc_uncorrected", "0\n")
        put(folder / "stats/hardware/health_status/unhealthy_components", "\n")
        # Two of the eight keep the tree small; nothing reads how many there are.
        for core in range(2):
            for status in STATUSES:
                self.count(index, core, status, 7 if status == "success" else 0)

    def count(self, device: int, core: int, status: str, total: int) -> None:
        folder = self.device(device) / f"neuron_core{core}/stats/status" / status
        put(folder / "total", f"{total}\n")

    def _recorded_answers(self) -> None:
        for name, file in (
            ("neuron-ls -j", f"neuron-ls.{self.kind}.json"),
            ("neuron-ls", f"neuron-ls.{self.kind}.txt"),
            ("neuron-monitor", "neuron-monitor.trn2.48xlarge.json"),
            ("dkms status", "dkms.installed.txt"),
            ("dmesg", "dmesg.healthy.txt"),
            ("dpkg-query -W", "dpkg.2.33.txt"),
            ("fi_info -p", "fi_info.efa.txt"),
        ):
            self.says(name, recorded(file))
        self.says("modinfo -F", f"{DRIVER}\n")
        self.says("nccom-test", "")
        if self.devices == 1:
            self.change("neuron-monitor", small_record)

    def says(self, tool: str, text: str, status: int = 0, stderr: str = "") -> None:
        """Let a tool answer with a text."""
        self.answers[tool] = Output(
            name=tool.split()[0], ended="exited", status=status, stdout=text, stderr=stderr
        )

    def loses(self, tool: str) -> None:
        """Let a tool be absent, whatever it is asked."""
        for name in [name for name in self.answers if name.split()[0] == tool]:
            del self.answers[name]

    def hangs(self, tool: str) -> None:
        self.answers[tool] = Output(name=tool.split()[0], ended="timeout")

    def change(self, tool: str, change: Callable[[Any], object]) -> None:
        """Change what a tool answers in JSON."""
        value = json.loads(self.answers[tool].stdout)
        changed = change(value)
        self.says(tool, json.dumps(value if changed is None else changed, indent=2))

    def opens(self, pid: int, device: int, *argv: str) -> None:
        """Let a process have a device open."""
        put(self.root / "proc" / str(pid) / "cmdline", "\0".join(argv) + "\0")
        link = self.root / "proc" / str(pid) / "fd" / str(3 + device)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"/dev/neuron{device}")

    def ask(self, name: str, *arguments: str, first_line: bool = False) -> Output:
        """Stand in for :meth:`trn_validate.neuron.tools.Tools.ask`."""
        self.asked.append((name, *arguments))
        key = " ".join((name, *arguments[:1]))
        return self.answers.get(key, Output(name=name, ended="absent"))

    @property
    def choice(self) -> Choice:
        """The target that the signs of this host select."""
        return choose(read_signs(self.root))

    def install(self) -> Choice:
        """Write the tools as programs, which answer as they do here; give the choice."""
        scripts: dict[str, list[str]] = {}
        for number, (key, output) in enumerate(self.answers.items()):
            tool, _, option = key.partition(" ")
            answer = put(self.root / "answers" / f"{number}.txt", output.stdout)
            ending = "sleep 60" if output.ended == "timeout" else f"exit {output.status}"
            case = f"'{option}') cat {answer}; echo '{output.stderr}' >&2; {ending};;"
            scripts.setdefault(tool, []).append(case)
        for tool, cases in scripts.items():
            folder = "opt/aws/neuron/bin" if tool.startswith(("neuron-", "nccom")) else "usr/bin"
            body = "\n".join(cases)
            file = put(self.root / folder / tool, f'#!/bin/sh\ncase "$1" in\n{body}\nesac\n')
            file.chmod(0o755)
        return self.choice

    def facts(self, **environment: str) -> HostFacts:
        """All that the host shows now."""
        return read_host(self.root, self.ask, environment)


def small_record(record: dict[str, Any]) -> None:
    """The record of a machine with one device."""
    record["instance_info"]["instance_type"] = "trn2.3xlarge"
    record["neuron_hardware_info"]["neuron_device_count"] = 1
    del record["system_data"]["neuron_hw_counters"]["neuron_devices"][1:]


def lnc_1(listing: list[dict[str, Any]]) -> None:
    """The same devices at LNC 1: twice the cores."""
    for device in listing:
        device["nc_count"] = 8
        device["logical_neuroncore_config"] = 1
        first = 8 * device["neuron_device"]
        device["neuroncore_ids"] = list(range(first, first + 8))


def at_lnc_1(machine: Machine) -> Machine:
    """A machine whose tools all say LNC 1."""
    machine.change("neuron-ls -j", lnc_1)
    text = machine.answers["neuron-ls"].stdout
    machine.says("neuron-ls", text.replace("neuroncore-config: 2", "neuroncore-config: 1"))
    one = {"logical_neuroncore_config": 1, "neuroncore_per_device_count": 8}
    machine.change("neuron-monitor", lambda r: r["neuron_hardware_info"].update(one))
    return machine
