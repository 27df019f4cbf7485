"""JSON out of text that may hold more than JSON, or less than all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, ValidationError

from trn_validate.neuron.finding import Finding, Read, found


class Lenient(BaseModel):
    """What a tool printed: a release may add fields, and what is read has to be there."""

    model_config = ConfigDict(extra="ignore", frozen=True)


_DECODER = json.JSONDecoder()
_CLOSES = {"[": "]", "{": "}"}
_MOST_STARTS = 64
"""Places at which a value may begin; a log that is all brackets is no answer."""


def read_json(text: str, where: str, fits: Callable[[object], bool]) -> Read[object]:
    """The first value in ``text`` that ``fits``; what stands around it is a finding.

    A library may log on stdout before the tool prints (``[INFO] ...``), so a bracket alone does
    not begin the value: it has to parse, and it has to have the shape that is expected.
    """
    starts = _starts(text)
    for start in starts:
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if fits(value):
            return Read(value, _noise(text[:start], text[end:], where))
    if starts and text.rstrip()[-1] != _CLOSES[text[starts[0]]]:
        what = "the JSON ends in the middle"
        return Read(None, (found("tool_output_truncated", what, where, raw=text),))
    what = "no JSON of the documented shape"
    return Read(None, (found("tool_output_unreadable", what, where, raw=text),))


def misshapen(error: ValidationError, where: str, raw: str) -> Finding:
    """Say which part of a value is not as it is documented."""
    first = error.errors()[0]
    what = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return found("tool_output_unreadable", what, where, raw=raw)


def has_object(text: str) -> bool:
    """Whether a line of ``text`` begins a JSON object that is whole."""
    for start in re.finditer(r"^\{", text, re.M):
        try:
            _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        return True
    return False


def _starts(text: str) -> list[int]:
    places = [place for place, letter in enumerate(text) if letter in "[{"]
    return places[:_MOST_STARTS]


def _noise(before: str, after: str, where: str) -> tuple[Finding, ...]:
    around = "\n".join(part.strip() for part in (before, after) if part.strip())
    if not around:
        return ()
    return (found("tool_output_noisy", "text around the JSON", where, raw=around),)
