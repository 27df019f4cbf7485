"""Which target this host is, told from the host alone, before any package is trusted.

Standard library only, and Python 3.7 is enough: make asks this module for its
answer before anything is installed, so it runs as a script too::

    python3 trn_validate/target.py                   the target, or a refusal and status 3
    python3 trn_validate/target.py --neuron-signs    1 where the host shows any, else 0

The rule that orders all others: a broken Trn2 is never called a CPU. ``cpu`` needs the
absence of every sign; one sign of a Trn2 selects its target, whatever else is missing,
and ``environment.device`` then says what is missing.

What counts as a name: a product_name that begins with a Neuron family (trn1, inf2, ...).
Anything else (absent, a hypervisor's or a vendor's text, another EC2 type) neither
selects nor contradicts: a guest with a passed-through device carries its hypervisor's
name. Such a name is shown in the reason, and the PCI functions decide.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

HOST_ROOT = "TRN_VALIDATE_HOST_ROOT"
"""Variable that moves the root under which the host is read."""

CPU = "cpu"
AMAZON = "0x1d0f"
TRN2 = "Trn2"
TRN2_DEVICE = "0x7364"

CHIPS = {
    **dict.fromkeys(("0x7064", "0x7065", "0x7066", "0x7067"), "Inf1"),
    "0x7164": "Trn1",
    "0x7264": "Inf2",
    TRN2_DEVICE: TRN2,
    **dict.fromkeys(("0x7564", "0x7565"), "Trn3"),
}
"""Neuron chip of a PCI device id."""

TARGETS = {
    "trn2.3xlarge": "trn2.3xlarge",
    "trn2.48xlarge": "trn2.48xlarge",
    "trn2u.48xlarge": "trn2.48xlarge",
}
"""Target of an instance type."""

_OVERRIDE = "To choose a plan yourself, name it with TARGET= (make) or --config."
_FAMILY = re.compile(r"(trn|inf)([0-9])(?![0-9])")
_NODE = re.compile(r"neuron[0-9][!-~]*")
_PCI_ID = re.compile(r"0x[0-9a-f]{4}")
_TOOLS = "opt/aws/neuron/bin"
_LONGEST = 256


@dataclass(frozen=True)
class Signs:
    """What the host shows; empty means absent."""

    host_root: str = "/"
    pci: dict[str, int] = field(default_factory=dict)
    product_name: str = ""
    dev_nodes: tuple[str, ...] = ()
    tools: bool = False
    sys_vendor: str = ""
    unreadable: tuple[str, ...] = ()

    @property
    def trn2_functions(self) -> int:
        """PCI functions with Trn2's vendor and device number."""
        return self.pci.get(TRN2_DEVICE, 0)

    def show(self) -> str:
        """Say in one line what was seen."""
        functions = [f"{n} x {device} ({CHIPS[device]})" for device, n in sorted(self.pci.items())]
        nodes = f"{len(self.dev_nodes)} (/dev/neuron*)" if self.dev_nodes else "none"
        parts = [
            f"PCI functions: {', '.join(functions) or 'none'}",
            f"product_name: {self.product_name or 'none'}",
            f"device nodes: {nodes}",
            f"/{_TOOLS}: {'there' if self.tools else 'absent'}",
        ]
        if self.unreadable:
            parts.append(f"unreadable: {', '.join(self.unreadable)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Choice:
    """A target with its reason and what else to say, or a refusal (exit status 3)."""

    target: str | None
    reason: str
    note: str
    refusal: str
    signs: Signs


def host_root() -> Path:
    """Give the root under which the host is read: / unless the variable moves it."""
    return Path(os.environ.get(HOST_ROOT) or "/").absolute()


def read_signs(root: Path) -> Signs:
    """Read every sign under ``root``; what cannot be read is named, never raised."""
    unreadable: list[str] = []
    dmi = root / "sys/devices/virtual/dmi/id"
    # A mistyped root would otherwise be an empty host, and so a CPU.
    if not _is_folder(root, []):
        unreadable.append(str(root))
    nodes = [name for name in _names(root / "dev", unreadable) if _NODE.fullmatch(name)]
    return Signs(
        host_root=str(root),
        pci=_functions(root / "sys/bus/pci/devices", unreadable),
        product_name=_text(dmi / "product_name", unreadable),
        dev_nodes=tuple(f"/dev/{name}" for name in sorted(nodes, key=lambda n: (len(n), n))),
        tools=_is_folder(root / _TOOLS, unreadable),
        sys_vendor=_text(dmi / "sys_vendor", []),
        unreadable=tuple(unreadable),
    )


def choose(signs: Signs) -> Choice:
    """Choose the target that the signs select, or refuse and say why."""
    named = _family(signs.product_name)
    chips = sorted({CHIPS[device] for device in signs.pci} | ({named} if named else set()))
    if len(chips) > 1:
        return _refuse(signs, f"the signs of this host contradict each other ({', '.join(chips)})")
    if TRN2 in chips:
        return _trn2(signs, bool(named))
    if chips:
        return _refuse(signs, f"the chip of this host is {chips[0]}; only Trn2 can be validated")
    if signs.dev_nodes:
        return _refuse(signs, "this host has Neuron device nodes, but nothing tells of which chip")
    if signs.tools:
        hidden = "a container that hides the device looks so (see its --device option)"
        return _refuse(signs, f"the Neuron tools are here and no device is: {hidden}")
    if signs.unreadable:
        return _refuse(signs, "this host cannot be read, so it cannot be called a CPU")
    return _cpu(signs)


def main(arguments: list[str]) -> int:
    """Answer make: print the target, or with ``--neuron-signs`` 1 or 0."""
    if arguments not in ([], ["--neuron-signs"]):
        print("usage: target.py [--neuron-signs]", file=sys.stderr)
        return 2
    choice = choose(read_signs(host_root()))
    if arguments:
        print(int(choice.target != CPU))
        return 0
    if choice.target is None:
        print(choice.refusal, file=sys.stderr)
        return 3
    print(choice.target)
    return 0


def _trn2(signs: Signs, named: bool) -> Choice:
    count = sum(signs.pci.values())
    functions = f"{count} PCI function{'' if count == 1 else 's'} of a Trn2"
    if not named:
        target = "trn2.3xlarge" if count == 1 else "trn2.48xlarge"
        name = signs.product_name or "absent"
        note = f"product_name ({name}) names no Trn2, so the number of PCI functions chose {target}"
        return _take(signs, target, f"{functions}; product_name: {name}", note)
    name = signs.product_name.lower()
    if name not in TARGETS:
        return _refuse(signs, f"no plan is known for the Trn2 instance type {signs.product_name}")
    notes = []
    if TARGETS[name] != name:
        notes.append(f"{name} runs the {TARGETS[name]} plan")
    if not count:
        notes.append("no PCI function is visible: environment.device says what is missing")
    return _take(signs, TARGETS[name], f"product_name: {name}; {functions}", "; ".join(notes))


def _cpu(signs: Signs) -> Choice:
    looked = (
        f"no sign of a Neuron device: no PCI function of vendor {AMAZON} with device "
        f"{', '.join(sorted(CHIPS))}, no product_name of a Neuron family "
        f"({signs.product_name or 'absent'}), no /dev/neuron*, no /{_TOOLS}"
    )
    return _take(signs, CPU, looked, "a rehearsal on the CPU: never adoption evidence")


def _take(signs: Signs, target: str, reason: str, note: str) -> Choice:
    if signs.host_root != "/":
        moved = f"the host was read under {signs.host_root}, so this is a rehearsal"
        note = f"{note}; {moved}" if note else moved
    return Choice(target, reason, note, "", signs)


def _refuse(signs: Signs, why: str) -> Choice:
    return Choice(None, "", "", f"{why}. Seen: {signs.show()}. {_OVERRIDE}", signs)


def _family(product_name: str) -> str:
    found = _FAMILY.match(product_name.lower())
    return f"{found[1].capitalize()}{found[2]}" if found else ""


def _functions(folder: Path, unreadable: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in _names(folder, unreadable):
        if _text(folder / name / "vendor", unreadable).lower() != AMAZON:
            continue
        device = _text(folder / name / "device", unreadable).lower()
        if device in CHIPS:
            found[device] = found.get(device, 0) + 1
        elif not _PCI_ID.fullmatch(device):
            # Amazon's, and it may be any of them: that is no reason to call the host a CPU.
            unreadable.append(str(folder / name / "device"))
    return found


def _names(folder: Path, unreadable: list[str]) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        _report(error, folder, unreadable)
        return []


def _text(path: Path, unreadable: list[str]) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_LONGEST)
    except OSError as error:
        _report(error, path, unreadable)
        return ""
    # It is shown on terminals of every encoding, so no control character may survive.
    return "".join(c for c in raw.decode("ascii", "backslashreplace") if c.isprintable()).strip()


def _is_folder(path: Path, unreadable: list[str]) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        _report(error, path, unreadable)
        return False


def _report(error: OSError, path: Path, unreadable: list[str]) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        unreadable.append(str(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
