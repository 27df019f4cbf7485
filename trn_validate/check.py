"""One measured claim, and the only rule by which it holds."""

import math
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    computed_field,
    model_validator,
)

from trn_validate.base import Record, revive

Comparator = Literal["<=", "<", ">=", ">", "==", "!="]


def _finite(value: int | float | str) -> int | float | str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a limit has to be finite")
    return value


Value = Annotated[StrictInt | StrictFloat | StrictStr, BeforeValidator(revive)]
Limit = Annotated[Value, AfterValidator(_finite)]


def holds(measured: int | float | str, comparator: Comparator, limit: int | float | str) -> bool:
    """Whether ``measured`` stands in that relation to ``limit``.

    A number is never compared with a text, and a number that is not finite holds in
    no relation at all, not even ``!=``.
    """
    if isinstance(measured, str) != isinstance(limit, str):
        return False
    if isinstance(measured, float) and not math.isfinite(measured):
        return False
    match comparator:
        case "==":
            return measured == limit
        case "!=":
            return measured != limit
    if isinstance(measured, str) or isinstance(limit, str):
        return False
    match comparator:
        case "<=":
            return measured <= limit
        case "<":
            return measured < limit
        case ">=":
            return measured >= limit
        case ">":
            return measured > limit


class Basis(Record):
    """From what a measured limit follows: limit = max(floor, factor x control)."""

    floor: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    control: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The same figure of a control run, which differs from the reference by rounding alone."""
    ceiling: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """A control that reaches it fails a check of its own: the plan is too noisy to judge."""

    @property
    def limit(self) -> float:
        """The limit that follows."""
        return max(self.floor, self.factor * self.control)


class Check(Record):
    """One measured claim."""

    name: Annotated[str, Field(min_length=1)]
    measured: Value
    comparator: Comparator
    limit: Limit
    unit: str = ""
    source: Literal["config", "measured", "derived"]
    """Where the limit comes from: the plan, a control run, or arithmetic on the plan."""
    detail: str = ""
    """Names the rank, step or parameter that the measured value comes from."""
    basis: Basis | None = None
    """Where the limit was measured: the numbers that it follows from."""

    @model_validator(mode="after")
    def _follows(self) -> "Check":
        if (self.source == "measured") != (self.basis is not None):
            raise ValueError("a measured limit names its basis, and no other has one")
        if self.basis is not None and self.limit != self.basis.limit:
            raise ValueError(f"the limit is {self.limit}, but its basis gives {self.basis.limit}")
        return self

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated property
    @property
    def passed(self) -> bool:
        """Computed, never set."""
        return holds(self.measured, self.comparator, self.limit)

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.name}: {self.measured}{unit} {self.comparator} {self.limit}{unit}{detail}"


def none_found(name: str, count: int, detail: str = "") -> Check:
    """A check that holds where nothing of a kind was found; the detail says what was."""
    return Check(
        name=name, measured=count, comparator="==", limit=0, source="derived", detail=detail
    )
