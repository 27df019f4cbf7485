"""What a launch on a neuron device is given: caches of its run, and bounds on compiling.

Eager operations are compiled too, one by one, by every rank that does not find them in the cache.
At 64 ranks that killed compilers for want of memory (aws-neuron-sdk issue 1369), and whoever met
it warmed the cache with few ranks and let only so many compile at once.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from trn_validate.launch import LaunchRequest
from trn_validate.memory import available_gib
from trn_validate.paths import make_folder, write_atomic
from trn_validate.spec import CheckpointChoice, RunSpec

CACHE = "neuron-cache"
"""Folder of the run's private twin: a new run starts with an empty cache, so that no entry of
another version is ever read."""

CACHES = {
    "TORCH_NEURONX_NEFF_CACHE_DIR": "neff",
    "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": "neff-local",
    "TORCH_NEURONX_HLO_CACHE_DIR": "hlo",
    "NKI_TRACE_CACHE_URL": "nki-trace",
    "NKI_COMPILE_CACHE_URL": "nki-compile",
}
"""Variables that say where the native package and NKI keep what they compiled.

Guess: release 2.33 heeds these names, which are the pre-release's and users'. They are set in the
environment that a rank starts with, since they are read while the package is imported.
"""

UNSET = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
"""Never set here: where neither is set, the package gives each rank the core of its LOCAL_RANK."""

COMPILER = "neuronx-cc"

EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}
"""Set for launches over several nodes, as the Neuron documentation's multi-node set-ups do: with
another provider the ranks would talk over TCP, and say nothing of it."""

FEW = 8
"""Ranks that may compile everything at once; a launch of more is preceded by one of fewer.

Guess: eight compilers fit every host that has more cores than that, as one user bounded them.
"""


def environment(private: Path, ranks: int) -> dict[str, str]:
    """Variables of a launch of ``ranks`` ranks in the run whose private folder that is.

    Raises:
        FolderError: the folders could not be made.
    """
    variables = {name: str(private / CACHE / folder) for name, folder in CACHES.items()}
    for folder in variables.values():
        make_folder(Path(folder))
    tools = _bounded_compiler(private, ranks)
    if tools is not None:
        before = os.environ.get("PATH", os.defpath)
        variables["PATH"] = f"{tools}{os.pathsep}{before}"
    return variables


def equipped(device: str, private: Path, ranks: int, request: LaunchRequest) -> LaunchRequest:
    """A launch with all that one on this device is given; what it asks for itself goes on top.

    Raises:
        FolderError: the folders could not be made.
    """
    if device != "neuron":
        return request
    network = EFA if request.nodes > 1 else {}
    return replace(request, env={**environment(private, ranks), **network, **request.env})


def _bounded_compiler(private: Path, ranks: int) -> Path | None:
    """Folder with a compiler that waits for a slot; None where all ranks may compile at once."""
    from trn_validate.neuron.surroundings import compile_slots

    real = shutil.which(COMPILER)
    slots = max(1, compile_slots(available_gib(), ranks))
    if real is None or slots >= ranks:
        return None
    # A folder for each number, since the slots of two numbers would not bound each other.
    folder = private / CACHE / f"slots-{slots}"
    make_folder(folder)
    script = Path(__file__).with_name("compile_slot.py")
    words = [sys.executable, "-I", "-S", str(script), str(folder), str(slots), real]
    text = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    file = folder / COMPILER
    write_atomic(file, text.encode())
    file.chmod(0o755)
    return folder


def warm_spec(spec: RunSpec) -> RunSpec | None:
    """The same launch on as few ranks and layers as have its shapes; None where none is needed.

    Shards of parameters are larger on fewer ranks, so what works on them is compiled again. All
    that works on activations and on whole parameters is not.
    """
    degrees = spec.degrees
    if spec.device != "neuron" or degrees.world_size <= FEW or degrees.ep > 1:
        return None
    # Two, so that parameters are still gathered and gradients scattered; over cp they are anyhow.
    shards = 1 if degrees.cp > 1 else min(degrees.dp_shard, 2)
    fewer = degrees.model_copy(update={"dp_replicate": 1, "dp_shard": shards})
    if fewer == degrees:
        return None
    name = f"{spec.name}-warm"
    folder = Path(spec.records).parent.with_name(name)
    layers = 2 * degrees.pp
    if spec.model.layers is not None:
        layers = min(layers, spec.model.layers)
    return spec.model_copy(
        update={
            "name": name,
            "records": str(folder / "records"),
            "dump": str(folder / Path(spec.dump).name),
            "stacks": str(folder / "stacks"),
            "degrees": fewer,
            "nodes": 1,
            "model": spec.model.model_copy(update={"layers": layers}),
            "global_batch_size": spec.local_batch_size * fewer.data_parallel * spec.accumulation,
            "checkpoint": CheckpointChoice(),
            "digest_steps": (),
            "capture": "none",
            "keep_start": False,
            "perturb": 0,
            "count_communication": False,
        }
    )


def is_warm(private: Path, warm: RunSpec) -> bool:
    """Whether a launch of these shapes has filled the run's cache before."""
    return _mark(private, warm).exists()


def set_warm(private: Path, warm: RunSpec) -> None:
    """Remember that one has.

    Raises:
        FolderError: it could not be written.
    """
    write_atomic(_mark(private, warm), b"")


def _mark(private: Path, warm: RunSpec) -> Path:
    same = warm.model_copy(update={"name": "", "records": "", "dump": "", "stacks": ""})
    digest = hashlib.sha256(same.model_dump_json().encode()).hexdigest()
    return private / CACHE / f"warm-{digest[:16]}"
