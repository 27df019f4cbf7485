"""Our kernels as configs/kernels.yaml lists them, imported."""

from __future__ import annotations

from trn_validate.kernel_list import load_kernels
from trn_validate.kernels.opcheck.subjects import subject_of

SUBJECTS = {entry.name: subject_of(entry) for entry in load_kernels()}
RMSNORM, SWIGLU, EXPERT_MLP = (SUBJECTS[name] for name in ("rmsnorm", "swiglu", "expert_mlp"))
