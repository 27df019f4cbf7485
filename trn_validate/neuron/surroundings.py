"""The host around the device: memory, root disk, EFA, and the system's Neuron packages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from trn_validate.neuron.finding import Finding, Read, found
from trn_validate.neuron.tools import Ask

HOST_GIB_PER_RANK = 7.0
"""GiB; the vendor's neuron-monitor guide shows a process with 6.5 GiB of host memory."""

HOST_GIB_PER_COMPILE = 32.0
"""GiB. Guess: one neuronx-cc takes so much; users report "tens of GB" each."""

ROOT_DISK_GIB = 476.0
"""512 GB in GiB, which the vendor's set-up guide advises for the root volume."""

_PACKAGE = re.compile(r"^(aws-neuronx-[\w-]+)(?::\w+)?[ \t]+(\S+)$", re.M)


def compile_slots(available_gib: float, ranks: int) -> int:
    """How many compilers may run at once beside ``ranks`` ranks; 0 where not even one."""
    left = available_gib - ranks * HOST_GIB_PER_RANK
    return max(0, min(ranks, int(left // HOST_GIB_PER_COMPILE)))


def judge_memory(available_gib: float, ranks: int) -> tuple[Finding, ...]:
    """Say if not every rank can compile at once, which is what a first step does."""
    slots = compile_slots(available_gib, ranks)
    if slots >= ranks:
        return ()
    what = f"{available_gib:.0f} GiB are enough for {slots} compilers beside {ranks} ranks"
    return (found("host_memory_small", what, "/proc/meminfo"),)


def judge_root_disk(root: Path) -> tuple[Finding, ...]:
    """Say if the root volume is smaller than advised."""
    total = shutil.disk_usage(root).total / 2**30
    if total >= ROOT_DISK_GIB:
        return ()
    return (found("root_disk_small", f"{total:.0f} GiB", str(root)),)


def judge_efa(nodes: int, ask: Ask) -> tuple[Finding, ...]:
    """Say if more than one node is asked for and no EFA endpoint is there.

    On one node its absence is benign: the plugin complains and nothing uses it.
    """
    if nodes < 2:
        return ()
    output = ask("fi_info", "-p", "efa")
    if output.ended == "exited" and output.status == 0 and "provider: efa" in output.stdout:
        return ()
    what = f"no endpoint, and {nodes} nodes are asked for"
    return (found("efa_missing", what, "fi_info -p efa", raw=output.text),)


def judge_world_sizes(sizes: Iterable[int]) -> tuple[Finding, ...]:
    """Say which world sizes users saw fail: 3, 6, 12 and 24 died in the device barrier."""
    odd = sorted({size for size in sizes if size & (size - 1)})
    if not odd:
        return ()
    what = f"world sizes {', '.join(map(str, odd))} are no powers of two"
    return (found("world_size_odd", what, "the plan's ladders"),)


def system_packages(ask: Ask) -> Read[dict[str, str]]:
    """Versions of the aws-neuronx packages that dpkg or rpm knows, by name."""
    form = "${binary:Package} ${Version}\n"
    output = ask("dpkg-query", "-W", f"-f={form}", "aws-neuronx-*")
    if output.ended == "absent":
        output = ask("rpm", "-qa", "--qf", "%{NAME} %{VERSION}\n", "aws-neuronx-*")
    packages = dict(_PACKAGE.findall(output.stdout))
    return Read(packages or None)
