"""A device ``neuron`` that computes on the CPU, for rehearsals where there is no Trainium.

``import torch`` calls :func:`autoload` by the entry point torch.backends, as it does for the
vendor's package. It refuses to load beside that one, and on a host whose root was not moved.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path

from torch_neuron_rehearsal import layout, settings

VENDOR = ("torch-neuronx", "nki", "libneuronxla", "neuronx-cc")
"""Distributions that this one stands in for."""


def autoload() -> None:
    """Register the device with the torch that is being imported.

    Raises:
        ImportError: the rehearsal was told to be broken.
        RuntimeError: the vendor's stack is here, or another backend, or no host to rehearse on.
        ValueError: a variable of the rehearsal says nothing that is known.
    """
    chosen = settings.read(os.environ)
    if chosen.broken:
        raise ImportError(
            "libnrt.so.1: cannot open shared object file: No such file or directory "
            "(a fault of the rehearsal)"
        )
    refuse_beside_the_vendor()
    root = rehearsed_host()
    import torch
    from torch.utils import backend_registration

    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        raise RuntimeError(f"PrivateUse1 is {name!r} already: no rehearsal beside another backend")
    from torch_neuron_rehearsal import _device, group, neuron
    from torch_neuron_rehearsal.activity import Activity

    _device.set_up(
        instance(root).cores, chosen.memory_bytes, dict(chosen.faults), set(chosen.limits)
    )
    os.register_at_fork(after_in_child=_device.forked)
    backend_registration.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", neuron)
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    import torch_neuronx  # noqa: F401  # loaded by the import of torch, as the vendor's is

    group.register(strict=chosen.strict_init)
    Activity(root, _device.executed, _device.initialized).start()


def refuse_beside_the_vendor() -> None:
    """See that nothing of the vendor's stack is installed, which these modules would hide.

    Raises:
        RuntimeError: something is.
    """
    for name in VENDOR:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        raise RuntimeError(f"{name} {version} is installed: no rehearsal device beside it")


def rehearsed_host() -> Path:
    """The root of the imitated host.

    Raises:
        RuntimeError: the root was not moved to one, so a run could be taken for a real one.
    """
    root = Path(os.environ.get(layout.HOST_ROOT) or "/").absolute()
    if root == Path("/") or not (root / layout.MARK).is_file():
        raise RuntimeError(
            f"the rehearsal device loads only on the host of `make rehearse`, and "
            f"{layout.HOST_ROOT} is {os.environ.get(layout.HOST_ROOT, 'unset')}"
        )
    return root


def instance(root: Path) -> layout.Instance:
    """Which instance a host imitates."""
    told = json.loads((root / layout.MARK).read_text(encoding="utf-8"))
    return layout.INSTANCES[told["instance"]]
