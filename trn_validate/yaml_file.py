"""Reading a plan's YAML: no duplicate keys, numbers as YAML 1.2 has them, ``--set`` on top."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from trn_validate.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, of which PyYAML would keep the last.

    It refuses aliases, too: a nest of them grows without bound.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node that stands for itself."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="an alias (*name); write the value out", problem_mark=self.get_mark()
            )
        return super().compose_node(parent, index)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[object] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(
                problem=f"key {key!r} is not a text", problem_mark=_mark(key_node)
            )
        if key in seen:
            raise yaml.MarkedYAMLError(
                problem=f"key {key!r} is given twice", problem_mark=_mark(key_node)
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _mark(node: yaml.Node) -> yaml.Mark:
    return node.start_mark


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
# YAML 1.1 reads 5e-6 as a text, which nobody who writes a limit expects.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


_REFUSALS = (
    yaml.YAMLError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What PyYAML raises for a text that it cannot read: ``!!bool x`` is a KeyError, ``!!map [x]``
a TypeError, an escape beyond Unicode an OverflowError."""


def printable(text: str) -> str:
    """The text as it is, or quoted where it would not stay on its line."""
    return text if text.isprintable() else repr(text)


def read(path: Path) -> dict[str, Any]:
    """Read a plan file.

    Raises:
        ConfigError: no such file, not UTF-8, not YAML, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("no such plan", where=str(path), todo=_known(path)) from None
    except (OSError, ValueError) as error:  # also not UTF-8, or a NUL in the path
        raise ConfigError(f"the plan cannot be read ({error})", where=str(path)) from None
    return parse(text, where=str(path))


def parse(text: str, *, where: str) -> dict[str, Any]:
    """Parse a plan's text; ``where`` names it in messages.

    Raises:
        ConfigError: not YAML, or not a mapping.
    """
    try:
        raw = yaml.load(text, _Loader)  # a SafeLoader
    except _REFUSALS as error:
        raise ConfigError(f"not YAML ({_one_line(error)})", where=where) from None
    if not isinstance(raw, dict):
        raise ConfigError(
            "a plan is a mapping of keys to values", where=where, todo="See configs/cpu.yaml."
        )
    return raw


def _known(path: Path) -> str:
    names = (
        sorted(entry.name for entry in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    )
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"Did you mean {path.parent / close[0]}?"
    return f"There are: {', '.join(names)}." if names else "The folder holds no plans."


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        return f"{error.problem}{place}"
    text = " ".join(str(error).split())
    return text if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: {text}"


def override(raw: dict[str, Any], settings: Iterable[str]) -> None:
    """Apply ``key.path=value`` settings in place; the value is YAML.

    A part of a path is a key, or the position or ``name`` of an entry of a list.

    Raises:
        ConfigError: no ``=``, or a path that leads nowhere.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        where = f"--set {printable(setting)}"
        if not equals or not path:
            raise ConfigError("not of the form key=value", where=where)
        value = parse(f"value: {text}", where=where).get("value")
        *parents, last = path.split(".")
        node: Any = raw
        for part in parents:
            node = _step(node, part, where)
        _assign(node, last, value, where)


def _step(node: Any, part: str, where: str) -> Any:
    if isinstance(node, dict) and part in node:
        return node[part]
    if isinstance(node, list):
        return node[_position(node, part, where)]
    raise _nowhere(node, part, where)


def _assign(node: Any, part: str, value: Any, where: str) -> None:
    if isinstance(node, dict):
        # A new key is allowed: the schema knows which keys exist, and says so better.
        node[part] = value
    elif isinstance(node, list):
        node[_position(node, part, where)] = value
    else:
        raise _nowhere(node, part, where)


def _position(node: list[Any], part: str, where: str) -> int:
    for position, entry in enumerate(node):
        if part == str(position) or (isinstance(entry, dict) and entry.get("name") == part):
            return position
    raise _nowhere(node, part, where)


def _nowhere(node: Any, part: str, where: str) -> ConfigError:
    if isinstance(node, dict):
        known = [str(key) for key in node]
    elif isinstance(node, list):
        known = [
            str(entry["name"]) for entry in node if isinstance(entry, dict) and "name" in entry
        ]
    else:
        known = []
    close = difflib.get_close_matches(part, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known) or 'none'}."
    return ConfigError(f"the plan has no {part!r} there", where=where, todo=hint)
