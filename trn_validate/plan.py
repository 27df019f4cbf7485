"""How a file becomes the plan of one model path: read, overridden, checked.

Whatever is wrong is answered with the place, the numbers and the remedy.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from trn_validate import yaml_file
from trn_validate.config import LadderSection, Plan, PlanFile
from trn_validate.errors import ConfigError
from trn_validate.ladder import check_ladders


def load(path: Path, *, model_path: str = "native", settings: Iterable[str] = ()) -> Plan:
    """Read, override and check a plan.

    Raises:
        ConfigError: with the place, the numbers and what to do.
    """
    raw = yaml_file.read(path)
    chosen = tuple(settings)
    yaml_file.override(raw, chosen)
    file = parse(raw, where=str(path))
    section = file.paths.get(model_path)  # type: ignore[call-overload]  # any text may be asked for
    if section is None:
        raise ConfigError(
            f"the plan has no path {model_path!r}",
            where=str(path),
            todo=f"It has: {', '.join(file.paths)}.",
        )
    plan = Plan(
        target=file.target,
        path=model_path,  # type: ignore[arg-type]  # a key of file.paths
        source=str(path),
        settings=chosen,
        profile=file.profile,
        limits=file.limits,
        timeouts=file.timeouts,
        accept_unsupported=file.accept_unsupported,
        ladders=_with_data(section.ladders, where=str(path)),
    )
    check_ladders(plan)
    return plan


def parse(raw: dict[str, Any], *, where: str) -> PlanFile:
    """Check a mapping against the schema.

    Raises:
        ConfigError: the first thing that is wrong, and how many more there are.
    """
    try:
        return PlanFile.model_validate_json(json.dumps(raw, allow_nan=False))
    except ValidationError as error:
        raise _explain(error, where) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"a value is no text, number, list or mapping ({error})",
            where=where,
            todo="Put texts that look like dates in quotes.",
        ) from None


def _explain(error: ValidationError, where: str) -> ConfigError:
    # A list whose entries are wrong is reported once more, as too short.
    problems = [p for p in error.errors() if p["type"] != "too_short" or not p["input"]]
    # A key that is misspelt is also missing under its right name; the spelling is what helps.
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    first = next(unknown, problems[0])
    place = ".".join(yaml_file.printable(str(part)) for part in first["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _known_keys(PlanFile, first["loc"][:-1])
        key = str(first["loc"][-1])
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."
        return ConfigError(f"{place}: unknown key {key!r}{more}", where=where, todo=hint)
    shown = "" if first["type"] == "missing" else f", not {first['input']!r:.60}"
    message = first["msg"][:1].lower() + first["msg"][1:]
    return ConfigError(
        f"{place}: {message}{shown}{more}" if place else f"{message}{more}",
        where=where,
        todo="See configs/ for examples and docs/plan.md for every key.",
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


def _with_data(ladders: tuple[LadderSection, ...], *, where: str) -> tuple[LadderSection, ...]:
    """Fill in the digest of each text file, so that the plan names what it trains on."""
    done = []
    for ladder in ladders:
        data = ladder.workload.data
        if data.kind == "text":
            if not data.path:
                raise ConfigError(
                    f"ladder {ladder.name}: data.kind is text, but data.path is missing",
                    where=where,
                )
            try:
                digest = hashlib.sha256(Path(data.path).read_bytes()).hexdigest()
            except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
                reason = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(
                    f"ladder {ladder.name}: the text cannot be read ({reason})",
                    where=yaml_file.printable(data.path),
                ) from None
            if data.sha256 not in (None, digest):
                raise ConfigError(
                    f"ladder {ladder.name}: its sha256 is {digest}, the plan says {data.sha256!r}",
                    where=yaml_file.printable(data.path),
                )
            workload = ladder.workload.model_copy(
                update={"data": data.model_copy(update={"sha256": digest})}
            )
            ladder = ladder.model_copy(update={"workload": workload})
        done.append(ladder)
    return tuple(done)
