"""Which lineage of the Neuron packages executes: told by what it can do, never by a version.

Three share the name of a distribution and of a module. Native TorchNeuron renames PrivateUse1,
registers an entry point of torch.backends and a compiler backend; the legacy one computes through
torch_xla; "Lite" renames PrivateUse1 too, and drops collectives of eager tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from trn_validate.neuron.finding import Finding, Read, found
from trn_validate.neuron.noisy import Lenient

NATIVE, LEGACY, LITE, OTHER, NONE = "native", "legacy XLA", "Lite", "another backend", "none"
DEVICE = "neuron"

_DYNAMO = "torch_neuronx.neuron_dynamo_backend"
_OWED = ("nki_op", "get_fallback_ops")


class EntryPoint(Lenient):
    """One backend that every ``import torch`` loads."""

    value: str
    distribution: str = ""
    """Name and version of the package that brings it."""


class Answer(Lenient):
    """What :mod:`trn_validate.lineage_probe` wrote."""

    result: str
    before: dict[str, str]
    after: dict[str, str]
    backends: tuple[EntryPoint, ...]
    """All that ``import torch`` loads."""
    privateuse1: str = ""
    modules: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    attribute_version: str = ""
    """What the module says of itself; the distribution may say another."""
    available: bool = False
    devices: int = 0
    chip: str = ""
    runtime_error: str = ""

    @property
    def imported(self) -> bool:
        """Whether torch could be imported."""
        return self.result == "imported"


def parse(answer: Mapping[str, object], where: str) -> Read[Answer]:
    """Read a probe's answer; a process that was killed has left none."""
    try:
        return Read(Answer.model_validate(dict(answer)))
    except ValidationError:
        return Read(None, (found("probe_left_no_answer", "no answer", where),))


def lineage_of(answer: Answer) -> str:
    """The lineage that computes in a process which imported torch."""
    if answer.privateuse1 != DEVICE:
        return LEGACY if "torch_neuronx.xla_impl" in answer.modules else NONE
    if not any(entry.value.startswith("torch_neuronx") for entry in answer.backends):
        return LITE if "libtorch_neuronx_lite" in answer.modules else OTHER
    # Either is enough: these names are a pre-release's, and a release may have moved one.
    native = _DYNAMO in answer.modules or "nki_op" in answer.attributes
    return NATIVE if native else LITE


def executing(answer: Answer | None) -> str:
    """Name and version of the package that executes, or empty."""
    if answer is None or not answer.imported or answer.privateuse1 != DEVICE:
        return ""
    return next((entry.distribution for entry in answer.backends), "")


def judge_autoload(loaded: Answer | None, bare: Answer | None) -> tuple[Finding, ...]:
    """Hold the import that loads backends against the one that does not."""
    told = []
    if bare is not None and not bare.imported:
        told.append(found("torch_broken", bare.result, "import torch, autoload off"))
    elif loaded is not None and not loaded.imported:
        told.append(found("autoload_broken", loaded.result, "import torch"))
    entries = loaded.backends if loaded else ()
    if loaded is not None and not entries:
        told.append(found("no_entry_point", "none in torch.backends", "the installed packages"))
    if len(entries) > 1:
        named = ", ".join(f"{entry.value} of {entry.distribution}" for entry in entries)
        told.append(found("two_backends", named, "entry points torch.backends"))
    return tuple(told)


def judge_lineage(loaded: Answer | None, rehearsal: bool) -> tuple[Finding, ...]:
    """Say what is wrong with the lineage that executes.

    In a rehearsal, whose host root is not /, another package may stand in for the native one.
    """
    if loaded is None or not loaded.imported:
        return ()
    lineage = lineage_of(loaded)
    told = []
    if lineage != NATIVE and not (rehearsal and lineage == OTHER):
        what = f"{lineage} executes, PrivateUse1 is {loaded.privateuse1!r}"
        told.append(found("not_native", what, "import torch"))
    if lineage == NATIVE:
        told += [
            found("capability_missing", f"torch_neuronx.{name} is absent", "import torch")
            for name in _OWED
            if name not in loaded.attributes
        ]
    if "libtorch_neuronx_lite" in loaded.modules and lineage == NATIVE:
        told.append(found("two_lineages", "libtorch_neuronx_lite", "the installed packages"))
    if loaded.privateuse1 == DEVICE and not (loaded.available and loaded.devices):
        what = loaded.runtime_error or f"available {loaded.available}, {loaded.devices} devices"
        told.append(found("runtime_unavailable", what, "torch.neuron"))
    return tuple(told)
