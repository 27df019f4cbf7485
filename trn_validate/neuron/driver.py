"""The driver: the version that is loaded, the module on disk, and what dkms could build."""

from __future__ import annotations

import re
from pathlib import Path

from trn_validate.base import Record
from trn_validate.fingerprint import loaded_driver
from trn_validate.neuron.files import held
from trn_validate.neuron.finding import Finding, found
from trn_validate.neuron.tools import Ask, Output

MODULE = "neuron"
PACKAGE = "aws-neuronx"
"""Name under which dkms knows the driver (dkms.conf of its source)."""

# dkms 3 prints "name/version, kernel, arch: state", dkms 2 "name, version, kernel, arch: state";
# a version that was only added has no kernel.
_STATE = re.compile(
    rf"^{PACKAGE}(?:/|, )(?P<version>[^,:\s]+)(?:, (?P<kernel>[^,:\s]+))?(?:, [^,:\s]+)?: "
    r"(?P<state>\w+)",
    re.M,
)
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+\S*")


class Built(Record):
    """One line of dkms status."""

    version: str
    kernel: str
    """Empty where it was built for none."""
    state: str
    """added, built, installed or broken."""


class Driver(Record):
    """The driver of the host."""

    loaded: str
    """What libnrt reads; empty where no module is loaded."""
    on_disk: str
    """Empty where it could not be told."""
    kernel: str
    """Release of the running kernel."""
    headers: bool
    built: tuple[Built, ...] | None
    """None where dkms gave no answer: an image may bring the module built."""


def read_driver(root: Path, ask: Ask) -> Driver:
    """Read all of it; what no source tells is empty."""
    kernel = held(root / "proc/sys/kernel/osrelease") or ""
    return Driver(
        loaded=loaded_driver(root) or "",
        on_disk=parse_modinfo(ask("modinfo", "-F", "version", MODULE)),
        kernel=kernel,
        headers=has_headers(root, kernel),
        built=_dkms(ask),
    )


def parse_modinfo(output: Output) -> str:
    """Version that modinfo prints, or empty."""
    text = output.stdout.strip()
    return text if output.status == 0 and _VERSION.fullmatch(text) else ""


def parse_dkms(text: str) -> tuple[Built, ...]:
    """Lines of ``dkms status`` about this driver."""
    return tuple(
        Built(version=m["version"], kernel=m["kernel"] or "", state=m["state"])
        for m in _STATE.finditer(text)
    )


def has_headers(root: Path, kernel: str) -> bool:
    """Whether the headers are there from which dkms builds for ``kernel``."""
    places = (
        root / "lib/modules" / kernel / "build",
        root / "usr/src" / f"linux-headers-{kernel}",
        root / "usr/src/kernels" / kernel,
    )
    return bool(kernel) and any(place.is_dir() for place in places)


def judge_driver(driver: Driver) -> tuple[Finding, ...]:
    """Say what is wrong with the driver."""
    told = []
    if not driver.loaded:
        what = "no version there, so no driver is loaded"
        told.append(found("driver_not_loaded", what, "/sys/module/neuron/version"))
    if not driver.on_disk:
        told.append(found("module_version_unknown", "no version", f"modinfo {MODULE}"))
    elif driver.loaded and driver.loaded != driver.on_disk:
        # modinfo tells of the file, which an upgrade replaces while the old module runs on.
        what = f"the loaded driver is {driver.loaded}, the module on disk {driver.on_disk}"
        told.append(found("module_newer_than_loaded", what, "/sys/module/neuron/version"))
    if not driver.headers:
        what = f"no headers for the running kernel {driver.kernel or '(unknown)'}"
        told.append(found("kernel_headers_missing", what, "/lib/modules and /usr/src"))
    return (*told, *_judge_built(driver))


def _judge_built(driver: Driver) -> tuple[Finding, ...]:
    if driver.built is None:
        return (found("dkms_state_unknown", "no answer", "dkms status"),)
    ready = [b for b in driver.built if (b.kernel, b.state) == (driver.kernel, "installed")]
    # An image may bring the module without dkms; then nothing is listed and nothing is wrong.
    if ready or not driver.built:
        return ()
    lines = (f"{b.version} for {b.kernel or 'no kernel'}: {b.state}" for b in driver.built)
    listed = "; ".join(lines)
    what = f"not installed for the running kernel {driver.kernel} ({listed})"
    return (found("dkms_not_built", what, "dkms status", raw=listed),)


def _dkms(ask: Ask) -> tuple[Built, ...] | None:
    output = ask("dkms", "status")
    return parse_dkms(output.stdout) if output.ended == "exited" and output.status == 0 else None
