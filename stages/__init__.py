"""The stages, one module each, in gate order."""

from __future__ import annotations

from stages import (
    baseline_checkpoint,
    baseline_eager,
    environment_collectives,
    environment_device,
    environment_imports,
    environment_nodes,
    environment_ops,
    kernels_compile,
    kernels_nki,
    parallelism,
)
from trn_validate.config import Plan
from trn_validate.stage import Family, Stage

FAMILIES: tuple[Family, ...] = (
    environment_device.FAMILY,
    environment_imports.FAMILY,
    environment_nodes.FAMILY,
    environment_collectives.FAMILY,
    environment_ops.FAMILY,
    baseline_eager.FAMILY,
    baseline_checkpoint.FAMILY,
    parallelism.FAMILY,
    kernels_compile.FAMILY,
    kernels_nki.FAMILY,
)
"""A stage runs only if all before it opened the gate."""


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """The stages that a plan has, in gate order."""
    return tuple(stage for family in FAMILIES for stage in family.members(plan))
