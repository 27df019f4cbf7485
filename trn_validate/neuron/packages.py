"""Installed packages of the stack, and what of their versions cannot work."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping

from trn_validate.fingerprint import PACKAGES
from trn_validate.neuron.finding import Finding, found

DISTRIBUTIONS = (*PACKAGES, "libtorch-neuronx-lite", "pip")

OLDEST_NKI = (0, 6)
"""0.6.0 lifted NCC_ICFG018, which refuses loops (aws-neuron-sdk issue 1346)."""

OLDEST_PIP = (24,)
"""Before it, pip dies of the metadata of nki's wheel with a TypeError (a user's report)."""


def installed() -> dict[str, str]:
    """Versions of the distributions that are here, without loading any."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def judge_packages(versions: Mapping[str, str], compiler: str | None) -> tuple[Finding, ...]:
    """Say what cannot work, or is known not to.

    ``versions`` are those of :func:`installed`; ``compiler`` is the path of neuronx-cc as a
    rank would find it, None where it would find none.
    """
    told = []
    torch, neuronx = versions.get("torch", ""), versions.get("torch-neuronx", "")
    if neuronx and _number(torch)[:2] != _number(neuronx)[:2]:
        what = f"torch is {torch or 'absent'}, and torch-neuronx {neuronx}"
        told.append(found("torch_mismatch", what, "the installed versions"))
    if neuronx and compiler is None:
        told.append(found("compiler_not_on_path", "no neuronx-cc", "PATH"))
    nki, pip = versions.get("nki", ""), versions.get("pip", "")
    if nki and _number(nki) < OLDEST_NKI:
        told.append(found("nki_too_old", nki, "nki"))
    if pip and _number(pip) < OLDEST_PIP:
        told.append(found("pip_too_old", pip, "pip"))
    if neuronx and (xla := versions.get("torch-xla")):
        told.append(found("legacy_xla_present", f"torch-xla {xla}", "the installed versions"))
    return tuple(told)


def _number(version: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    head = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in head[0].split(".")) if head else ()
