"""The base of everything that is written, and numbers that may be no numbers."""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def revive(value: object) -> object:
    """Turn the three texts that stand for non-finite numbers back into floats."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def absent(value: object) -> bool:
    """Whether a field says nothing, so that it is left out of what is written (``exclude_if``)."""
    return value in (None, ())


def median(values: Sequence[float]) -> float:
    """The median of at least one figure."""
    # Imported here, since status has 0.3 s and takes no median.
    import statistics

    return statistics.median(values)


def larger(one: float, other: float) -> float:
    """The larger of the two; NaN, which compares with nothing, counts as larger."""
    return other if math.isnan(other) or other > one else one


Real = Annotated[
    float,
    BeforeValidator(revive),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_NON_FINITE)}]}),
]
"""A float that may be NaN or infinite and survives JSON."""


class Record(BaseModel):
    """Base of everything that is written: strict, closed and immutable.

    Non-finite numbers are kept as the texts NaN, Infinity and -Infinity, since a
    bad value has to survive into the verdict.
    """

    # Built when first used: a command reads few of the kinds that there are.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, ser_json_inf_nan="strings", defer_build=True
    )
