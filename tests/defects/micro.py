"""The plan that the defects are seeded into: the CPU plan's model and limits, in less time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stages import stages_of
from trn_validate import plan as plans
from trn_validate import yaml_file
from trn_validate.config import Plan
from trn_validate.session import CHECKOUT
from trn_validate.stage import Stage

ENVIRONMENT = {"run": "seeded defects"}
"""Fingerprint of the runs: nothing here goes stale, so the machine is not asked."""
STEPS = 4
"""The fewest that a plan may have: one to save after, and some on both sides of a resume."""
RUNGS: tuple[dict[str, Any], ...] = (
    {"name": "baseline"},
    {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
    {"name": "ddp", "extends": "baseline", "dp_replicate": 2},
    {"name": "pp", "extends": "baseline", "pp": 2},
    {"name": "tp", "extends": "fsdp", "tp": 2},
    {"name": "cp", "extends": "fsdp", "cp": 2},
)
"""Those of two ranks before those of four, so that a group of ranks can end when it is done."""


def micro_plan(folder: Path) -> Plan:
    """Write the plan to ``folder`` and read it; model, limits and batch are the CPU plan's."""
    raw = yaml_file.read(CHECKOUT / "configs" / "cpu.yaml")
    ladder = raw["paths"]["native"]["ladders"][0]
    ladder["workload"]["steps"] = STEPS
    ladder["rungs"] = [dict(rung) for rung in RUNGS]
    file = folder / "micro.yaml"
    file.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return plans.load(file)


def first_rung_alone(plan: Plan) -> Plan:
    """The same plan with no other layout than its reference's."""
    (ladder,) = plan.ladders
    first = ladder.model_copy(update={"rungs": ladder.rungs[:1]})
    return plan.model_copy(update={"ladders": (first,)})


def micro_stages(plan: Plan) -> tuple[Stage, ...]:
    """The stages that train; what comes before them asks about the machine."""
    return tuple(s for s in stages_of(plan) if not s.id.startswith("environment."))
