from __future__ import annotations

import json
import math

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.builders import step
from trn_validate.base import Real, revive
from trn_validate.records import Line, Step, Written

LINE: TypeAdapter[Written] = TypeAdapter(Line)
REAL: TypeAdapter[float] = TypeAdapter(Real)


@pytest.mark.parametrize(
    ("text", "value"), [("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf)]
)
def test_the_three_texts_of_numbers_that_are_not_finite_are_read_as_numbers(
    text: str, value: float
) -> None:
    found = REAL.validate_json(json.dumps(text))
    assert isinstance(found, float)
    assert str(found) == str(value)
    assert step(1, loss=value).model_dump_json().count(f'"{text}"') == 1


@pytest.mark.parametrize("value", ["nan", "inf", "1.0", "", None, 5, [1]])
def test_any_other_value_is_left_as_it_is(value: object) -> None:
    assert revive(value) == value


@pytest.mark.parametrize("text", ["nan", "inf", "1.0", ""])
def test_any_other_text_is_no_number(text: str) -> None:
    values = json.loads(step(1).model_dump_json()) | {"loss": text}
    with pytest.raises(ValidationError, match="loss"):
        LINE.validate_json(json.dumps(values))


@pytest.mark.parametrize("value", [0.1, 1e-300, 5e-324, 1.7976931348623157e308, -0.0])
def test_a_number_keeps_every_bit_in_its_text(value: float) -> None:
    again = LINE.validate_json(step(1, loss=value).model_dump_json())
    assert isinstance(again, Step)
    assert again.loss.hex() == value.hex()


def test_the_schema_of_a_number_allows_the_three_texts() -> None:
    schema = REAL.json_schema(mode="serialization")
    assert schema["anyOf"] == [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]
