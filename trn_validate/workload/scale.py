"""Would torchtitan build these layouts? All of them in one process, with nothing behind them.

``python -m trn_validate.workload.scale --cases FILE --answers FILE``: the first holds a run spec
for each case; the second gets what torchtitan made of it for its first and its last rank. The
process group is torch's fake one, by torchtitan's dry-run seam, and the model is on the meta
device, so that neither ranks nor memory are needed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.distributed.parallel_dims import ParallelDims
from torchtitan.distributed.utils import init_fake_mode

from trn_validate.spec import RunSpec
from trn_validate.workload import device
from trn_validate.workload.titan import build_config

INNER = ("tp", "cp", "pp")
"""Axes that must not leave a node."""


def main() -> None:
    """Answer every case."""
    parser = argparse.ArgumentParser(prog="trn_validate.workload.scale")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    asked = parser.parse_args()
    device.install("cpu")
    cases = json.loads(asked.cases.read_text(encoding="utf-8"))
    answers = [_answer(RunSpec.model_validate_json(json.dumps(case))) for case in cases]
    asked.answers.write_text(json.dumps(answers, indent=2), encoding="utf-8")


def _answer(spec: RunSpec) -> dict[str, Any]:
    world = spec.degrees.world_size
    try:
        config: Any = build_config(spec)
        spread = {}
        for rank in (0, world - 1):
            spread[str(rank)] = _neighbours(config, world, rank)
        with torch.device("meta"):
            model = config.model_spec.model.build()
        parameters = sum(parameter.numel() for parameter in model.parameters())
    # Whatever torchtitan says of a layout is the answer to whether it builds it.
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {"neighbours": spread, "parameters": parameters}


def _neighbours(config: Any, world: int, rank: int) -> dict[str, list[int]]:
    """The ranks with which a rank shares each of the inner axes, as torchtitan's mesh has them."""
    init_fake_mode(world, rank=rank)
    try:
        dims: Any = ParallelDims.from_config(config.parallelism, world)
        dims.build_mesh()
        meshes = {axis: dims.get_optional_mesh(axis) for axis in INNER}
        return {axis: mesh.mesh.flatten().tolist() for axis, mesh in meshes.items() if mesh}
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
