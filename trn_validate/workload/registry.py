"""Config functions for torchtitan's ``--module`` and ``--config``."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from trn_validate.spec import RunSpec
from trn_validate.workload.probe import ProbedTrainer
from trn_validate.workload.titan import build_config


def from_spec() -> ProbedTrainer.Config:
    """The config of the run spec that TRN_VALIDATE_SPEC names, after its hooks."""
    spec = RunSpec.model_validate_json(
        Path(os.environ["TRN_VALIDATE_SPEC"]).read_text(encoding="utf-8")
    )
    config = build_config(spec)
    for hook in spec.hooks:
        module, _, function = hook.partition(":")
        config = getattr(importlib.import_module(module), function)(config) or config
    return config
