"""What of this machine and its packages can change a result, told without importing any.

Never time, load, host name or free memory: equal machines give equal fingerprints.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from trn_validate.sources import folder_sources, module_sources

PACKAGES = (
    "torch",
    "torchtitan",
    "torch-neuronx",
    "torchtitan-neuron",
    "neuronx-cc",
    "nki",
    "libneuronxla",
    "nrtpy",
    "torch-xla",
    "triton",
    "transformers",
    "safetensors",
    "numpy",
    "pydantic",
    "spmd_types",
)
"""Distributions whose version takes part."""

VARIABLES = (
    # threads, instruction sets and math modes of the CPU
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "PYTHONHASHSEED",
    # which backend is loaded, and what is compiled
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_NEURONX_ATEN_GMM_ALIGN",
    "TORCH_NEURONX_COMPLEX_DECOMPOSE",
    "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
    "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY",
    "TORCH_NEURONX_ENABLE_ASYNC_NRT",
    "TORCH_NEURONX_ENABLE_HOST_CC",
    "TORCH_NEURONX_ENABLE_NKI_SDPA",
    "TORCH_NEURONX_ENABLE_STABLEHLO",
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
    "TORCH_NEURONX_MLIR_ATEN_OPS",
    "TORCH_NEURONX_RETAIN_DEVICE_MODE",
    "XLA_FLAGS",
    "XLA_USE_BF16",
    "XLA_DOWNCAST_BF16",
    # which cores, and how they compute
    "NEURON_RT_VISIBLE_CORES",
    "NEURON_RT_NUM_CORES",
    "NEURON_RT_VIRTUAL_CORE_SIZE",
    "NEURON_RT_ALLOW_LEGACY_NEFF",
    "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS",
    "NEURON_RT_ENABLE_HOST_CC",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN",
    "NEURON_CC_FLAGS",
    "NEURON_COMPILER_OPT_LEVEL",
    "NEURON_LAUNCH_BLOCKING",
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NKI_ENABLE_TRACE_CACHE",
    "NKI_PRECISE_FP",
    "NKI_SIMULATOR",
)
"""Variables that change numbers or the place where they are computed; not where caches lie."""

ABSENT = "absent"
_LNC = "NEURON_LOGICAL_NC_CONFIG"
_DEVICE = re.compile(r"neuron[0-9]+")


def fingerprint(
    host_root: Path = Path("/"),
    *,
    environment: Mapping[str, str] = os.environ,
    packages: Iterable[str] = PACKAGES,
) -> dict[str, str]:
    """Everything that takes part, by name; ``host_root`` is where the device is looked for."""
    driver = loaded_driver(host_root)
    found = {
        "os": system(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "host root": str(host_root),
        "driver": ABSENT if driver is None else driver,
        "lnc": environment.get(_LNC, "default"),
        "devices": str(_devices(host_root)),
    }
    for name in packages:
        found |= _package(name)
    found |= {f"${name}": environment[name] for name in VARIABLES if name in environment}
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """What changed between two fingerprints, a line for each."""
    return tuple(
        f"{name}: {before.get(name, ABSENT)} -> {after.get(name, ABSENT)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def system() -> str:
    """Name and version of the operating system, such as ``ubuntu 24.04``, or ``absent``."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ABSENT
    return f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip()


def loaded_driver(root: Path) -> str | None:
    """Version of the driver that is loaded, as libnrt reads it; None where there is none.

    modinfo tells of the file, which an upgrade replaces first.
    """
    try:
        return (root / "sys/module/neuron/version").read_text("utf-8", "replace").strip()
    except OSError:
        return None


def _devices(root: Path) -> int:
    try:
        return sum(1 for name in os.listdir(root / "dev") if _DEVICE.fullmatch(name))  # noqa: PTH208
    except OSError:
        return 0


def _package(name: str) -> dict[str, str]:
    """Version of a distribution, and its sources where a version does not tell them."""
    module = name.replace("-", "_")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        # A checkout on the path has no version, and is imported all the same.
        sources = module_sources(module)
        return {name: ABSENT} | ({} if sources == ABSENT else {f"{name} sources": sources})
    found = {name: _version(distribution)}
    folder = _editable(distribution)
    if folder is not None:
        tops = (distribution.read_text("top_level.txt") or module).split()
        digests = [module_sources(top) for top in tops]
        if ABSENT in digests:
            digests = [folder_sources(folder)]
        found[f"{name} sources"] = " ".join(digests)
    return found


def _version(distribution: metadata.Distribution) -> str:
    # Asked for its version it parses the whole description like an e-mail: 2 ms for each package.
    head = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
    told = (line.partition(": ") for line in head.splitlines())
    version = next((value for key, _, value in told if key == "Version"), None)
    return version or distribution.version


def _editable(distribution: metadata.Distribution) -> Path | None:
    """Folder of an editable install."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if not origin.get("dir_info", {}).get("editable"):
            return None
        return Path(origin["url"].removeprefix("file://"))
    except (ValueError, KeyError, AttributeError):
        return None
