"""All wrong kernels."""

from __future__ import annotations

from tests.defects.kernels.in_kernels import IN_KERNELS
from tests.defects.kernels.in_operators import IN_OPERATORS
from tests.defects.kernels.of_facts import OF_FACTS

MUTANTS = (*OF_FACTS, *IN_OPERATORS, *IN_KERNELS)
