"""Taking names of people, machines and secrets out of everything that leaves this host.

What each stand-in replaces is kept in the run's private folder alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trn_validate.errors import EvidenceError
from trn_validate.secret_text import REDACTED, is_secret_name, without_secrets
from trn_validate.verdict import Verdict

RUN, REPO, HOME = "<run>", "<repo>", "<home>"

Names = dict[str, tuple[str, ...]]
"""What each stand-in replaces: paths for ``<run>`` and the like, host names for ``node-N``."""

_SHORTEST = 3
_ORDINARY = """
localhost localhost.localdomain localhost6 run repo home redacted node rank host cpu neuron gloo
none torch nki trn2 passed failed error blocked unsupported baseline environment parallelism
kernels eager native transformers moe float32 bfloat16
"""
# Hosts of these names tell nothing, and replacing them would alter what the records say.
_UNTOLD = frozenset(_ORDINARY.split())
_NODE = re.compile(r"node-\d+")
_LITERAL = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"')

_FINDING = """
schema_version stage path run attempt target device distribution expects name comparator unit
source differ cause log layout model compute_dtype attention spmd_backend hooks blocked_by
started_at sha256 inputs_sha256 versions inputs builds_on
"""
# Fields of a verdict by which other parts of it, or files, are found again.
_IDENTIFIERS = frozenset(_FINDING.split())
_BY_IDENTIFIER = ("versions", "inputs", "builds_on")


class Redactor:
    """Replaces paths, host names and secrets by stand-ins, the longest name first.

    Applied twice it changes nothing more.
    """

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        self.names: Names = {stand_in: tuple(texts) for stand_in, texts in names.items()}
        self._paths: dict[str, str] = {}
        self._hosts: dict[str, str] = {}
        for stand_in, texts in self.names.items():
            for text in filter(None, texts):
                if _NODE.fullmatch(stand_in):
                    self._hosts.setdefault(text.lower(), stand_in)
                else:
                    self._paths.setdefault(text, stand_in)
                    # As JSON that is quoted inside another text shows it.
                    self._paths.setdefault(json.dumps(text)[1:-1], stand_in)
        paths = [(text, re.escape(text)) for text in self._paths]
        hosts = [(text, _whole_word(text)) for text in self._hosts]
        self._plain = _any_of(paths)
        self._full = _any_of(paths + hosts)

    def text(self, text: str) -> str:
        """Redact a text."""
        return without_secrets(self._full.sub(self._stand_in, text))

    def identifier(self, text: str) -> str:
        """Redact paths and secrets, but leave words that only look like a host's name."""
        return without_secrets(self._plain.sub(self._stand_in, text))

    def json_text(self, text: str) -> str:
        """Redact JSON, or lines of JSON, and leave all else in it as it was written."""
        if "\\" in text:
            text = _LITERAL.sub(self._literal, text)
        return self.text(text)

    def structure(self, value: Any) -> Any:
        """Redact every text and every key of a structure of dicts, lists and models."""
        if isinstance(value, BaseModel):
            return self.structure(value.model_dump(mode="json"))
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return [self.structure(entry) for entry in value]
        return value

    def _mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, entry in value.items():
            name = shown = self.text(key) if isinstance(key, str) else key
            count = 1
            while shown in found:
                count += 1
                shown = f"{name} ({count})"
            secret = isinstance(key, str) and isinstance(entry, str) and is_secret_name(key)
            found[shown] = REDACTED if secret else self.structure(entry)
        return found

    def _stand_in(self, match: re.Match[str]) -> str:
        found = match[0]
        return self._paths.get(found) or self._hosts[found.lower()]

    def _literal(self, match: re.Match[str]) -> str:
        if "\\" not in match[0]:
            return match[0]
        try:
            before = json.loads(match[0])
        except ValueError:
            return match[0]
        after = self.text(before)
        return match[0] if after == before else json.dumps(after)


def _any_of(patterns: list[tuple[str, str]]) -> re.Pattern[str]:
    longest_first = sorted(patterns, key=lambda pair: -len(pair[0]))
    return re.compile("|".join(pattern for _, pattern in longest_first) or r"(?!)")


def _whole_word(host: str) -> str:
    # An escaped newline before the name ends in a letter that is not part of it.
    return rf"(?:(?<![0-9A-Za-z-])|(?<=\\[nrt]))(?ai:{re.escape(host)})(?![0-9A-Za-z-])"


def redact_verdict(verdict: Verdict, redactor: Redactor) -> Verdict:
    """Redact every text of a verdict but those by which its parts are found.

    Raises:
        EvidenceError: without the names it would give another answer.
    """
    stated = json.loads(
        verdict.model_dump_json(exclude={"outcome": True, "checks": {"__all__": {"passed"}}})
    )
    redacted = Verdict.model_validate_json(json.dumps(_field(stated, "", redactor)))
    before = (verdict.outcome, [check.passed for check in verdict.checks])
    if before != (redacted.outcome, [check.passed for check in redacted.checks]):
        raise EvidenceError(
            "a check compares names or secrets that are not written down",
            where=verdict.stage,
            todo="Let the check measure something that may be shown.",
        )
    return redacted


def _field(value: Any, name: str, redactor: Redactor) -> Any:
    if name == "facts":
        return redactor.structure(value)
    if isinstance(value, str):
        return redactor.identifier(value) if name in _IDENTIFIERS else redactor.text(value)
    if isinstance(value, list):
        return [_field(entry, name, redactor) for entry in value]
    if isinstance(value, dict):
        inner = name if name in _BY_IDENTIFIER else ""
        return {
            redactor.identifier(key): _field(entry, inner or key, redactor)
            for key, entry in value.items()
        }
    return value


def extend(
    names: Names, paths: Mapping[str, Iterable[Path]], hosts: Iterable[Iterable[str]]
) -> Names:
    """Add paths and hosts to what is known; a host that is known keeps its number.

    ``hosts`` holds, for each machine, every name that it goes by.
    """
    found = dict(names)
    for stand_in, folders in paths.items():
        spelled = (text for path in folders for text in (str(path.absolute()), str(path.resolve())))
        telling = (text for text in spelled if len(text) >= _SHORTEST)
        found[stand_in] = tuple(dict.fromkeys((*found.get(stand_in, ()), *telling)))
    for aliases in hosts:
        full = [name.lower() for name in aliases]
        short = [name.partition(".")[0] for name in full]
        telling_names = [name for name in (*full, *short) if _tells(name)]
        if telling_names:
            # The short name does not tell two machines of two domains apart.
            node = _node_of(found, full)
            found[node] = tuple(dict.fromkeys((*found.get(node, ()), *telling_names)))
    return found


def _tells(host: str) -> bool:
    return len(host) >= _SHORTEST and host not in _UNTOLD and not _NODE.fullmatch(host)


def _node_of(names: Names, aliases: list[str]) -> str:
    nodes = [stand_in for stand_in in names if _NODE.fullmatch(stand_in)]
    known = (node for node in nodes if set(names[node]) & set(aliases))
    return next(known, f"node-{len(nodes)}")


@lru_cache(maxsize=1)
def host_names() -> tuple[str, ...]:
    """Every name that this machine gives itself."""
    import socket
    import threading

    found = [socket.gethostname()]
    # A resolver that does not answer must not hold up the run.
    asking = threading.Thread(target=lambda: found.append(socket.getfqdn()), daemon=True)
    asking.start()
    asking.join(timeout=1.0)
    return tuple(dict.fromkeys(found))
