"""All that environment.device asks of a Neuron host: sources, checks, and what goes on record."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trn_validate.config import Profile
from trn_validate.neuron.compare import CHECKS, device_checks
from trn_validate.neuron.finding import Finding, facts_of
from trn_validate.neuron.host import HostFacts, read_host
from trn_validate.neuron.surroundings import (
    judge_efa,
    judge_memory,
    judge_root_disk,
    judge_world_sizes,
    system_packages,
)
from trn_validate.neuron.tools import Kept, Tools
from trn_validate.paths import make_folder, write_atomic
from trn_validate.stage import Findings
from trn_validate.target import Signs

FOLDER = "host"
"""Folder of the attempt in which what the host showed is kept."""


def examine(
    profile: Profile, sizes: tuple[int, ...], signs: Signs, private: Path, available_gib: float
) -> Findings:
    """Ask every source of the host, judge it, and keep the raw answers in ``private``.

    ``sizes`` are the processes of every rung, in ascending order.

    Raises:
        FolderError: the answers could not be kept.
    """
    root = Path(signs.host_root)
    kept = Kept(Tools(root).ask)
    facts = read_host(root, kept.ask, os.environ)
    checks, told = device_checks(facts, profile, signs)
    packages = system_packages(kept.ask)
    told = (*told, *packages.findings, *_around(profile, sizes, root, available_gib, kept))
    _keep(private / FOLDER, facts, told, kept)
    return Findings(
        expects=CHECKS,
        checks=checks,
        facts=facts_of(told),
        measures={"findings": float(len(told))},
        versions={"driver": facts.driver.loaded or "none", **(packages.value or {})},
    )


def _around(
    profile: Profile, sizes: tuple[int, ...], root: Path, available_gib: float, kept: Kept
) -> tuple[Finding, ...]:
    nodes = -(-sizes[-1] // profile.cores)
    return (
        *judge_memory(available_gib, sizes[-1]),
        *judge_root_disk(root),
        *judge_world_sizes(sizes),
        *judge_efa(nodes, kept.ask),
    )


def _keep(folder: Path, facts: HostFacts, told: tuple[Finding, ...], kept: Kept) -> None:
    make_folder(folder)
    listed = [finding.model_dump() for finding in told]
    for name, text in (
        ("facts.json", facts.model_dump_json(indent=2, exclude={"findings"})),
        ("findings.json", json.dumps(listed, indent=2)),
        ("tools.txt", str(kept)),
    ):
        write_atomic(folder / name, f"{text}\n".encode("utf-8", errors="backslashreplace"))
