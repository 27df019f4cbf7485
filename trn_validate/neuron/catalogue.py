"""What every finding is called, how grave it is, and what to do about it.

A row of the vendor's or of users' known failures becomes one entry; docs/known-failures.md names
them by these ids. An ``error`` fails the check that it belongs to, a ``warning`` is on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Entry(NamedTuple):
    """One kind of finding."""

    severity: Literal["error", "warning"]
    todo: str


def _error(todo: str) -> Entry:
    return Entry("error", todo)


def _warning(todo: str) -> Entry:
    return Entry("warning", todo)


_READ_LOG = "read its text in the stage's folder and run the command by hand"
_RELOAD = "end every process that uses the device, then sudo rmmod neuron && sudo modprobe neuron"
_INDEX = "install the packages of one release from the vendor's index, in a fresh environment"
_REPLACE = "stop and start the instance, or end it: the hardware is faulty"

HOST: Mapping[str, Entry] = {
    # the tools
    "tool_absent": _error("install aws-neuronx-tools, or mount /opt/aws/neuron into the container"),
    "tool_failed": _error(_READ_LOG),
    "tool_timeout": _error("a tool that hangs points at the driver: look at dmesg, then reboot"),
    "tool_output_truncated": _error(_READ_LOG),
    "tool_output_unreadable": _error(_READ_LOG),
    "tool_output_noisy": _warning("look for what else writes to the output of the Neuron tools"),
    "tool_output_contradicts_itself": _error(_READ_LOG),
    "tool_reports_error": _error("the tool names the cause: often no driver is loaded"),
    "neuron_monitor_absent": _warning("install aws-neuronx-tools; until then sysfs alone counts"),
    # the driver
    "driver_not_loaded": _error("install aws-neuronx-dkms, then sudo modprobe neuron"),
    "module_newer_than_loaded": _error(f"{_RELOAD}, or reboot"),
    "module_version_unknown": _warning("run modinfo neuron by hand"),
    "dkms_not_built": _warning("install linux-headers-$(uname -r), then sudo dkms autoinstall"),
    "dkms_state_unknown": _warning("run dkms status by hand"),
    "kernel_headers_missing": _warning("install linux-headers-$(uname -r) before the next reboot"),
    # the device
    "sources_contradict": _error("reload the driver or reboot; a device that fell off looks so"),
    "lnc_contradicts": _error("set one LNC everywhere: the plan, the variable and the file"),
    "cores_held": _error("end that process, or stop the container that it runs in"),
    "uncorrected_ecc": _error(_REPLACE),
    "repairable_ecc": _warning("the driver repairs these; replace the instance if they grow"),
    "unhealthy_component": _error(_REPLACE),
    "hardware_error_logged": _error(_REPLACE),
    "kernel_log_unreadable": _warning("run as root, or sudo sysctl kernel.dmesg_restrict=0"),
    "sysfs_unreadable": _warning("an old driver lets only root read some files"),
    # the host around it
    "efa_missing": _error("attach EFA interfaces and install the EFA software"),
    "root_disk_small": _warning("512 GB are advised for the root volume"),
    "host_memory_small": _warning("use fewer ranks, or let fewer compilers run at once"),
    "world_size_odd": _warning("use world sizes that are powers of two"),
}
"""Of the host and its driver, seen by environment.device."""

PACKAGES: Mapping[str, Entry] = {
    "compiler_newer_than_runtime": _warning("upgrade aws-neuronx-runtime-lib, or pin neuronx-cc"),
    "nki_too_old": _warning("install nki 0.6.0 or newer"),
    "pip_too_old": _warning("python -m pip install 'pip>=24'"),
    "release_mixed": _warning(_INDEX),
    "release_unknown": _warning("compare the versions with the vendor's release notes by hand"),
    "python_unsupported": _warning("use a Python that the release names"),
    "os_unsupported": _warning("use an operating system that the release names"),
    "documents_contradict": _warning("the vendor's documents disagree: what happens decides"),
    "torch_mismatch": _error("install the torch that torch-neuronx was built for, in a fresh venv"),
    "compiler_not_on_path": _error("activate the environment: ranks start neuronx-cc from PATH"),
    "legacy_xla_present": _warning("its presence is no fault, but a fresh venv is safer"),
}
"""Of packages and their versions, seen by environment.imports."""

LINEAGE: Mapping[str, Entry] = {
    "probe_left_no_answer": _error("read the log of the launch: the import died or hung"),
    "autoload_broken": _error("the last error of the chain is the cause; repair that package"),
    "torch_broken": _error("torch does not import even with autoload off: reinstall it"),
    "no_entry_point": _error("install torch-neuronx: nothing registers a backend with torch"),
    "not_native": _error(_INDEX),
    "two_backends": _error("leave one package that registers a backend with torch"),
    "two_lineages": _warning("leave one of the lineages in this environment"),
    "capability_missing": _warning("this version of torch-neuronx lacks it; see its release notes"),
    "runtime_unavailable": _error("see cores held, the driver and NEURON_RT_VISIBLE_CORES"),
}
"""Of what executes, seen by environment.imports."""

VARIABLES: Mapping[str, Entry] = {
    "visible_cores_empty": _error("unset NEURON_RT_VISIBLE_CORES"),
    "visible_cores_set": _error("unset it: every rank would inherit the same cores"),
    "num_cores_set": _warning("unset it under torchrun: ranks may fight over cores"),
    "stochastic_rounding": _error("set NEURON_RT_STOCHASTIC_ROUNDING_EN=0 or unset it"),
    "cast_flags": _error("take the flag out: it changes the dtype that is computed in"),
    "compile_fallback": _error("unset it: a graph that fails to compile would run eagerly"),
    "eager_fallback": _warning("set it to 1, so that an operation that fails raises"),
    "trace_cache": _warning("set NKI_ENABLE_TRACE_CACHE=0 while kernels change"),
    "legacy_cache": _warning("unset it: it belongs to the legacy lineage alone"),
    "autoload_off": _error("unset it: only 1 switches autoload on, every other value off"),
    "wrong_platform": _error("unset it, or set it to trn2"),
    "simulator_on": _error("unset NKI_SIMULATOR: kernels would run on the CPU"),
    "variable_without_effect": _warning("unset it: since release 2.31 it only prints a warning"),
}
"""Of environment variables, seen by environment.imports before and after ``import torch``."""

COLLECTIVES: Mapping[str, Entry] = {
    "nccom_failed": _error("run the command of the verdict by hand; no torch is involved in it"),
    "nccom_unreported": _error("run the command of the verdict by hand, and look at its report"),
}
"""Of the vendor's own test of collectives, run by environment.collectives."""

CATALOGUE: Mapping[str, Entry] = {**HOST, **PACKAGES, **LINEAGE, **VARIABLES, **COLLECTIVES}
"""Every finding by its id."""
