from __future__ import annotations

import json
import math
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.builders import ROOT, check, verdict
from trn_validate.verdict import Problem, Verdict

FILE = ROOT / "docs" / "schema" / "verdict.schema.json"
SCHEMA: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def generated() -> str:
    """The schema's text, as ``docs/schema`` holds it."""
    schema = Verdict.model_json_schema(mode="serialization")
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def problems(made: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(made)]


def stated(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(verdict(**changes).to_json())
    return found


def test_the_schema_in_the_documentation_has_not_drifted_from_the_model() -> None:
    assert FILE.read_text(encoding="utf-8") == generated(), (
        "write Verdict.model_json_schema(mode='serialization') to docs/schema/verdict.schema.json, "
        "with sorted keys, an indent of 2 and a line break at the end"
    )


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checks": (check(), check(name="other", measured=2.0))},
        {"checks": (check(measured=math.nan), check(name="text", measured="cpu", limit="cpu"))},
        {"unmeasured": True, "problem": Problem(cause="hang", what="no line", rank=1, step=2)},
        {"blocked_by": "baseline.eager", "checks": (), "compared": (), "layout": None},
        {"unsupported": "absent", "execution": None},
        {"measures": {"loss": math.nan, "up": math.inf, "down": -math.inf}},
        {"series": {"loss": (math.nan, 1.5)}},
    ],
    ids=str,
)
def test_the_file_of_a_verdict_fits_the_schema(changes: dict[str, Any]) -> None:
    assert problems(stated(**changes)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "fine"},
        {"outcome": None},
        {"schema_version": "2"},
        {"schema_version": 1},
        {"extra": 1},
        {"inputs_sha256": "ab"},
        {"attempt": "1"},
        {"seconds": "12"},
        {"measures": {"loss": "nan"}},
        {"checks": [{"name": "loss"}]},
    ],
    ids=str,
)
def test_a_file_that_is_no_verdict_does_not_fit_the_schema(changes: dict[str, Any]) -> None:
    assert problems(stated() | changes)


def test_a_file_that_lacks_a_required_part_does_not_fit_the_schema() -> None:
    for name in ("outcome", "stage", "host", "inputs_sha256"):
        found = stated()
        del found[name]
        assert problems(found) == [f"{name!r} is a required property"]


def test_every_part_of_a_verdict_is_described() -> None:
    assert set(SCHEMA["properties"]) == set(json.loads(verdict().to_json()))
    assert SCHEMA["additionalProperties"] is False
