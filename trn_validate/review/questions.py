"""What nobody could know without a Trn2, and which field of which verdict answers it.

An answer is read and never assumed: where no verdict of a real Trn2 has the field, the question
stays open. A verdict counts that was made under the host root /, for a Trn2 target, with PCI
functions seen and without the test suite's hooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from trn_validate.check import Check
from trn_validate.evidence import is_trn2
from trn_validate.vendor_record import VendorRecord
from trn_validate.verdict import Outcome, Verdict

DEVICE, IMPORTS = "environment.device", "environment.imports"
COLLECTIVES, OPS = "environment.collectives", "environment.ops"
NUM_CORES = "NEURON_RT_NUM_CORES"

_MIXED = re.compile(r"moe|-a\d+(\.\d+)?b", re.IGNORECASE)
"""How flavours with experts are called upstream: debugmodel_moe, 30B-A3B."""


@dataclass(frozen=True)
class Material:
    """What a run left that may answer a question; only what a real Trn2 said."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    vendor: VendorRecord | None = None

    def fact(self, stage: str, name: str) -> str | None:
        """A fact of a verdict."""
        verdict = self.verdicts.get(stage)
        return verdict.facts.get(name) if verdict else None


def real(verdicts: Mapping[str, Verdict], vendor: VendorRecord | None = None) -> Material:
    """Leave out what was not said by a Trn2 itself."""
    told = {
        stage: verdict
        for stage, verdict in verdicts.items()
        if is_trn2(verdict.host) and verdict.host.trn2_functions > 0 and not verdict.hooks
    }
    return Material(told, vendor if vendor and is_trn2(vendor.host) else None)


@dataclass(frozen=True)
class Question:
    """One open question, and how its answer is read."""

    id: str
    asks: str
    needs: str
    """What has to run so that it is answered."""
    read: Callable[[Material], str | None]
    """The answer with its place, or None."""


def _num_cores(material: Material) -> str | None:
    """How the variable stood while a launch of several ranks passed on the device."""
    state = material.fact(IMPORTS, NUM_CORES)
    for stage, verdict in material.verdicts.items():
        many = verdict.layout is not None and verdict.layout.processes > 1
        trained = verdict.device == "neuron" and verdict.outcome is Outcome.PASSED
        if state and many and trained and verdict.layout:
            how = state if state == "unset" else f"set to {state}"
            return f"{how} works: {stage} passed with {verdict.layout.processes} ranks"
    return None


def _fact(stage: str, name: str) -> Callable[[Material], str | None]:
    def read(material: Material) -> str | None:
        value = material.fact(stage, name)
        return f"{value} ({stage}, fact {name!r})" if value is not None else None

    return read


def _fallback_ops(material: Material) -> str | None:
    attributes = material.fact(IMPORTS, "attributes of torch_neuronx")
    if attributes is None:
        return None
    there = "yes" if "get_fallback_ops" in attributes.split(", ") else "no"
    version = material.verdicts[IMPORTS].versions.get("torch-neuronx", "of unknown version")
    return f"{there}, in torch-neuronx {version} ({IMPORTS})"


def _named(pattern: str, *stages: str) -> Callable[[Material], str | None]:
    """What probes of these stages found of an operation whose name has the pattern.

    Where a verdict has no table of them, its checks and facts of that name.
    """
    wanted = re.compile(pattern, re.IGNORECASE)

    def read(material: Material) -> str | None:
        told = []
        for stage in stages:
            verdict = material.verdicts.get(stage)
            found = list(probed(verdict, wanted))
            if verdict and not found:
                found = [*_checks(verdict, wanted), *_facts(verdict, wanted)]
            told += [f"{text} ({stage})" for text in found]
        return "; ".join(told) or None

    return read


def probed(verdict: object, wanted: re.Pattern[str]) -> Iterator[str]:
    """Rows of a verdict's table of capabilities; one that was not asked is no answer."""
    for row in getattr(verdict, "capabilities", ()):
        if wanted.search(row.operation) and row.state != "unasked":
            detail = f" ({row.detail})" if row.detail else ""
            yield f"{row.operation} on {row.processes}: {row.state}{detail}"


def _checks(verdict: Verdict, wanted: re.Pattern[str]) -> Iterator[str]:
    return (_shown(check) for check in verdict.checks if wanted.search(check.name))


def _shown(check: Check) -> str:
    holds = "holds" if check.passed else "does not hold"
    return f"{check.name}: {check.measured} {check.comparator} {check.limit} {holds}"


def _facts(verdict: Verdict, wanted: re.Pattern[str]) -> Iterator[str]:
    return (f"{key}: {value}" for key, value in verdict.facts.items() if wanted.search(key))


def _script(material: Material) -> str | None:
    """Whether the fork's script took the options that upstream's takes."""
    vendor = material.vendor
    if vendor is None:
        return None
    if vendor.steps:
        return f"it takes what it was given: {' '.join(vendor.argv)} (the vendor's own run)"
    return f"not as it was given: {vendor.what}; read {vendor.log} (the vendor's own run)"


def _flavors(material: Material) -> str | None:
    imports = material.verdicts.get(IMPORTS)
    told = []
    for key, value in imports.facts.items() if imports else ():
        if key.startswith("flavors of torchtitan_neuron."):
            mixed = [name for name in value.split(", ") if _MIXED.search(name)]
            module = key.removeprefix("flavors of ")
            told.append(f"{module}: {', '.join(mixed) or 'none'}, of {value} ({IMPORTS})")
    return "; ".join(told) or None


QUESTIONS: tuple[Question, ...] = (
    Question(
        "num_cores",
        "Does NEURON_RT_NUM_CORES have to be set or unset under torchrun?",
        "a stage that trains on more than one rank, such as parallelism.fsdp",
        _num_cores,
    ),
    Question(
        "version",
        "What is torch_neuronx.__version__?",
        IMPORTS,
        _fact(IMPORTS, "torch_neuronx.__version__"),
    ),
    Question(
        "launch_blocking",
        "To what does import torch set NEURON_LAUNCH_BLOCKING?",
        f"{IMPORTS}, with the variable unset",
        _fact(IMPORTS, "default NEURON_LAUNCH_BLOCKING"),
    ),
    Question(
        "eager_fallback",
        "To what does it set TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS?",
        f"{IMPORTS}, with the variable unset",
        _fact(IMPORTS, "default TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"),
    ),
    Question(
        "int64",
        "What becomes of int64: kept, refused, or cut to int32?",
        f"{OPS} or {COLLECTIVES}, with a check or a fact of int64",
        _named(r"int64", OPS, COLLECTIVES),
    ),
    Question(
        "send_recv",
        "Do send and recv work?",
        f"{COLLECTIVES}, with a check or a fact of send",
        _named(r"\bsend|\brecv|send_recv|isend", COLLECTIVES),
    ),
    Question(
        "uneven_all_to_all",
        "Does all_to_all_single take uneven splits?",
        f"{COLLECTIVES}, with a check or a fact of uneven splits",
        _named(r"all_to_all(?!_list).*uneven", COLLECTIVES),
    ),
    Question(
        "fallback_ops",
        "Does torch_neuronx.get_fallback_ops still exist?",
        IMPORTS,
        _fallback_ops,
    ),
    Question(
        "run_train",
        "Does the fork's run_train.sh take the options of upstream's?",
        "the vendor's own run: make vendor-run",
        _script,
    ),
    Question(
        "moe_flavors",
        "What are the flavours with experts called in the fork?",
        f"{IMPORTS}, of a plan with a model of the fork that keeps a table of flavours",
        _flavors,
    ),
)
"""The open questions, in the order of the facts that this project was built on."""
