"""Checking a mapping against a schema, and saying in one line what is wrong with it."""

from __future__ import annotations

import difflib
import json
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from trn_validate import yaml_file
from trn_validate.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], raw: dict[str, Any], *, where: str, see: str) -> M:
    """``raw`` as a record of ``model``; ``see`` says where examples are.

    Raises:
        ConfigError: the first thing that is wrong, and how many more there are.
    """
    try:
        return model.model_validate_json(json.dumps(raw, allow_nan=False))
    except ValidationError as error:
        raise _explain(model, error, where, see) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"a value is no text, number, list or mapping ({error})",
            where=where,
            todo="Put texts that look like dates in quotes.",
        ) from None


def _explain(model: type[BaseModel], error: ValidationError, where: str, see: str) -> ConfigError:
    # A list whose entries are wrong is reported once more, as too short.
    problems = [p for p in error.errors() if p["type"] != "too_short" or not p["input"]]
    # A key that is misspelt is also missing under its right name; the spelling is what helps.
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    first = next(unknown, problems[0])
    place = ".".join(yaml_file.printable(str(part)) for part in first["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, first["loc"][:-1])
        key = str(first["loc"][-1])
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."
        return ConfigError(f"{place}: unknown key {key!r}{more}", where=where, todo=hint)
    shown = "" if first["type"] == "missing" else f", not {first['input']!r:.60}"
    message = first["msg"][:1].lower() + first["msg"][1:]
    return ConfigError(
        f"{place}: {message}{shown}{more}" if place else f"{message}{more}",
        where=where,
        todo=f"See {see}.",
    )


def _known_keys(model: Any, loc: tuple[int | str, ...]) -> list[str]:
    """Keys that the section at ``loc`` may have: annotations are walked as the error was."""
    kind: Any = model
    for part in loc:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
        else:  # an entry of a tuple, or a value of a dict
            kind = next(arg for arg in reversed(get_args(kind)) if arg is not Ellipsis)
        while (inner := [a for a in get_args(kind) if _is_section(a)]) and len(inner) == 1:
            if get_origin(kind) in (tuple, dict):
                break
            kind = inner[0]
    return list(kind.model_fields) if _is_section(kind) else []


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
