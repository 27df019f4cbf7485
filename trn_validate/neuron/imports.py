"""All that environment.imports asks of a Neuron installation beyond that its packages import."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from trn_validate.fingerprint import loaded_driver, system
from trn_validate.neuron.finding import Finding, facts_of, none_of
from trn_validate.neuron.lineage import (
    NATIVE,
    Answer,
    executing,
    judge_autoload,
    judge_lineage,
    lineage_of,
    parse,
)
from trn_validate.neuron.packages import installed, judge_packages
from trn_validate.neuron.releases import DRIVER, judge_release, load
from trn_validate.neuron.surroundings import system_packages
from trn_validate.neuron.tools import Tools
from trn_validate.neuron.variables import judge_variables, set_by_import
from trn_validate.stage import Findings
from trn_validate.verdict import Execution

VERSIONS, AUTOLOAD = "versions that cannot work together", "loading of backends by import torch"
LINEAGE, VARIABLES = "lineage that executes", "dangerous variables"
CHECKS = (VERSIONS, AUTOLOAD, LINEAGE, VARIABLES)

NUM_CORES = "NEURON_RT_NUM_CORES"
RELEASE_DEFAULTS = (
    "NEURON_LAUNCH_BLOCKING",
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
)
"""Set by the package while it is imported.

Guess: release builds of torch-neuronx flip the values that the pre-release gave these two.
"""


def judge_imports(
    root: Path, loaded: Mapping[str, object], bare: Mapping[str, object], given: Mapping[str, str]
) -> Findings:
    """Judge versions, lineage and variables.

    Args:
        root: host root; another one than / is a rehearsal.
        loaded: answer of the probe as the ranks import torch; empty where it left none.
        bare: the same with autoload off.
        given: the environment that launches are given.
    """
    on, off = parse(loaded, "import torch"), parse(bare, "import torch, autoload off")
    packages = installed()
    release, by_version = _versions(root, packages)
    autoload = (*on.findings, *off.findings, *judge_autoload(on.value, off.value))
    lineage = judge_lineage(on.value, rehearsal=root != Path("/"))
    variables = judge_variables(given, on.value.after if on.value else given)
    found = Findings(expects=CHECKS, facts=release | _told(on.value), versions=packages)
    found.checks += [
        none_of(VERSIONS, by_version),
        none_of(AUTOLOAD, autoload),
        none_of(VARIABLES, variables),
    ]
    # A torch that did not import executes nothing, so there is no lineage to be judged.
    if on.value is not None and on.value.imported:
        found.checks.append(none_of(LINEAGE, lineage))
    found.facts |= facts_of((*by_version, *autoload, *lineage, *variables))
    if distribution := executing(on.value):
        found.execution = Execution(distribution=distribution)
    return found


def _versions(
    root: Path, packages: Mapping[str, str]
) -> tuple[dict[str, str], tuple[Finding, ...]]:
    """The release that is installed, as facts, and what is wrong with the versions."""
    brought = system_packages(Tools(root).ask).value or {}
    # The driver that is loaded counts, not the package that waits for a reload.
    driver = loaded_driver(root) or brought.get(DRIVER, "")
    components = {**packages, **brought, **({DRIVER: driver} if driver else {})}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    matched, told = judge_release(components, python, system(), load())
    told = (*told, *judge_packages(packages, shutil.which("neuronx-cc")))
    if matched is None:
        return {}, told
    agreeing = ", ".join(matched.agreeing)
    return {"neuron release": f"{matched.sdk} (by {agreeing})"}, told


def _told(answer: Answer | None) -> dict[str, str]:
    if answer is None or not answer.imported:
        return {}
    changed = set_by_import(answer.before, answer.after)
    told = {"lineage": lineage_of(answer), "chip": answer.chip or "none"}
    if told["lineage"] == NATIVE:
        told |= _first_contact(answer)
    if changed:
        told["variables set by import torch"] = ", ".join(f"{k}={v}" for k, v in changed.items())
    return told


def _first_contact(answer: Answer) -> dict[str, str]:
    """What no document says of the native package, and its first import tells.

    pipeline.py answers reads these facts.
    """
    told = {
        "torch_neuronx.__version__": answer.attribute_version or "none",
        "attributes of torch_neuronx": ", ".join(answer.attributes) or "none",
        NUM_CORES: answer.before.get(NUM_CORES, "unset"),
    }
    # A value that was given hides the default.
    defaults = (name for name in RELEASE_DEFAULTS if name not in answer.before)
    return told | {f"default {name}": answer.after.get(name, "unset") for name in defaults}
