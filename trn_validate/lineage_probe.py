"""Import torch in a fresh process, and write down what it would execute on.

Run as ``python -m trn_validate.lineage_probe FILE``, once as the ranks do it and once with
TORCH_DEVICE_BACKEND_AUTOLOAD=0. It asks and does not judge: which backend is a Neuron lineage is
told elsewhere. Standard library only until torch, since the environment is compared around it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from trn_validate.import_probe import chain

PREFIXES = ("NEURON_", "TORCH_NEURONX_", "NKI_", "XLA_", "TORCH_DEVICE_BACKEND_AUTOLOAD", "JAX_")
"""Of the variables that are recorded; others may hold secrets."""

MODULES = (
    "torch_neuronx.neuron_dynamo_backend",
    "torch_neuronx.xla_impl",
    "libtorch_neuronx_lite",
    "torch_xla",
)
"""Each is there in some lineages alone."""

ATTRIBUTES = ("nki_op", "get_fallback_ops")
"""Of torch_neuronx, which the legacy lineage lacks or a later release may drop."""


def main(file: str) -> int:
    """Write the answer to ``file``; exit status 1 where torch did not import."""
    answer: dict[str, Any] = {
        "before": variables(),
        "backends": [
            {"value": entry.value, "distribution": _distribution(entry)}
            for entry in importlib.metadata.entry_points(group="torch.backends")
        ],
    }
    try:
        torch = importlib.import_module("torch")
        answer["result"] = "imported"
        answer["torch"] = torch.__version__
        answer["privateuse1"] = torch._C._get_privateuse1_backend_name()
    except BaseException as error:  # a backend that loads by itself may raise anything
        answer["result"] = chain(error)
    answer["after"] = variables()
    if answer["result"] == "imported":
        answer |= _backend(torch)
    Path(file).write_text(json.dumps(answer), encoding="utf-8")
    return 0 if answer["result"] == "imported" else 1


def variables() -> dict[str, str]:
    """The recorded part of the environment."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)}


def _backend(torch: Any) -> dict[str, Any]:
    """What the loaded backend can do; a device is only touched where one was registered."""
    package = sys.modules.get("torch_neuronx")
    found: dict[str, Any] = {
        "modules": [name for name in MODULES if _there(name)],
        "attributes": [name for name in ATTRIBUTES if hasattr(package, name)],
        "attribute_version": str(getattr(package, "__version__", "")),
    }
    device = getattr(torch, "neuron", None)
    if device is None:
        return found
    try:
        found["available"] = bool(device.is_available())
        found["devices"] = int(device.device_count())
        found["chip"] = str(device.get_device_properties().name)
    except BaseException as error:  # the runtime may raise anything while it starts
        found["runtime_error"] = chain(error)
    return found


def _there(name: str) -> bool:
    """Whether a module could be imported; a package that nobody loaded is not loaded for this."""
    parent = name.partition(".")[0]
    if parent != name and parent not in sys.modules:
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
