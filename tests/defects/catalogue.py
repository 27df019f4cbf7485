"""Every seeded defect, in the order in which the matrix shows them."""

from __future__ import annotations

from tests.defects.defect import Defect
from tests.defects.wrong_compiles import COMPILED
from tests.defects.wrong_gradients import GRADIENTS
from tests.defects.wrong_runs import RUNS
from tests.defects.wrong_stages import BASELINE, CHECKPOINT

DEFECTS: tuple[Defect, ...] = (*BASELINE, *CHECKPOINT, *GRADIENTS, *RUNS, *COMPILED)
