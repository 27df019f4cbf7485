"""The limits of a plan: what decides, and what a measured limit may be."""

from typing import Annotated

from pydantic import Field, model_validator

from trn_validate.base import Record
from trn_validate.spec import DTYPE

_MOST_OF_A_GRADIENT = 0.25
_Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Bound(Record):
    """What a measured limit may be: never below the floor, and no control at the ceiling."""

    floor: _Amount
    ceiling: _Amount

    @model_validator(mode="after")
    def _ordered(self) -> "Bound":
        if not self.floor <= self.ceiling:
            raise ValueError(f"the floor {self.floor} is above the ceiling {self.ceiling}")
        return self


_Factor = Annotated[float, Field(ge=1, le=100)]


class Deviations(Record):
    """Bounds on the distance between two layouts in one compute dtype."""

    factor: _Factor | None = None
    """What the plan's factor is in this dtype; None where it is the same."""
    loss_absolute: Bound
    """Distance of a step's loss from the reference's, nats."""
    grad_norm_relative: Bound
    """Relative distance of a step's gradient norm from the reference's."""
    gradient_relative: Bound
    """Relative L2 distance of a parameter's gradient of step 1."""
    parameter_relative: Bound
    """L2 distance of a parameter after the last step, relative to its change since the seed."""


class Limits(Record):
    """What decides; docs/limits.md has the source of each number."""

    first_loss_absolute: _Amount
    """Distance of the first loss from ln(vocabulary) with random weights, nats."""
    loss_fall: _Amount
    """Least fall of the loss over the baseline's steps, nats."""
    rerun_loss_absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Distance between two runs of the same thing, nats; 0 on the CPU, where it is exact."""
    factor: _Factor = 5.0
    """A limit is so many times what the control run shows."""
    float32: Deviations | None = None
    bfloat16: Deviations | None = None

    def of(self, dtype: DTYPE) -> Deviations:
        """Bounds for a ladder that computes in ``dtype``.

        Raises:
            ValueError: the plan has none, or one that lets a gradient be a quarter wrong.
        """
        found = self.float32 if dtype == "float32" else self.bfloat16
        if found is None:
            raise ValueError(f"compute_dtype is {dtype}, but the plan has no limits.{dtype}")
        factor = self.factor_of(dtype)
        for name in ("grad_norm_relative", "gradient_relative"):
            bound: Bound = getattr(found, name)
            # A control stays below its ceiling, so that limit is never reached; a floor is.
            highest = factor * bound.ceiling
            if bound.floor >= _MOST_OF_A_GRADIENT or highest > _MOST_OF_A_GRADIENT:
                raise ValueError(
                    f"limits.{dtype}.{name}: a limit could reach {_MOST_OF_A_GRADIENT} "
                    f"(floor {bound.floor}, ceiling {bound.ceiling}, factor {factor})"
                )
        return found

    def factor_of(self, dtype: DTYPE) -> float:
        """How many times the control a limit is, for a ladder that computes in ``dtype``."""
        found = self.float32 if dtype == "float32" else self.bfloat16
        return self.factor if found is None or found.factor is None else found.factor
