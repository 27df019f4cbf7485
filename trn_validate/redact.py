"""Taking names of people, machines and secrets out of everything that leaves this host.

What each stand-in replaces is kept in the run's private folder alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trn_validate.errors import EvidenceError
from trn_validate.secret_text import REDACTED, is_secret_name, without_json_secrets, without_secrets
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
# A string of JSON, or what stands between two; half a string at the end is the latter.
_PIECE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^"]+|"')

_FINDING = """
schema_version stage path run attempt target device distribution expects name comparator unit
source differ processes cause log layout model compute_dtype attention spmd_backend hooks blocked_by
started_at sha256 inputs_sha256 versions inputs builds_on
"""
# Fields of a verdict by which other parts of it, or files, are found again.
_IDENTIFIERS = frozenset(_FINDING.split())
_BY_IDENTIFIER = ("versions", "inputs", "builds_on")


class Redactor:
    """Replaces paths, host names and secrets by stand-ins, the longest first.

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
        self._path = _any_of(self._paths, re.escape)
        self._host = _any_of(self._hosts, _whole_word)

    def text(self, text: str) -> str:
        """Redact a text."""
        # A secret may look like a host, which says more; and where one ends a host may begin.
        return self._without_hosts(without_secrets(self._without_hosts(self._without_paths(text))))

    def identifier(self, text: str) -> str:
        """Redact paths and secrets, but leave words that only look like a host's name."""
        return without_secrets(self._without_paths(text))

    def json_text(self, text: str) -> str:
        """Redact JSON, or lines of JSON, and leave all else in it as it was written."""
        return "\n".join(map(self._json_line, text.split("\n")))

    def _json_line(self, line: str) -> str:
        if "\\" not in line and self.text(line) == line:
            return line
        return _PIECE.sub(self._json_piece, without_json_secrets(line))

    def _json_piece(self, match: re.Match[str]) -> str:
        piece = match[0]
        try:
            before = json.loads(piece) if piece[0] == '"' else None
        except ValueError:
            before = None
        if not isinstance(before, str):
            return self.text(piece)
        after = self.text(before)
        return piece if after == before else json.dumps(after)

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

    def _without_paths(self, text: str) -> str:
        return self._path.sub(lambda match: self._paths[match[0]], text)

    def _without_hosts(self, text: str) -> str:
        lower = text.lower()
        # Looking for a plain text is many times faster than for a whole word.
        if not any(host in lower for host in self._hosts):
            return text
        return self._host.sub(lambda match: self._hosts[match[0].lower()], text)


def _any_of(names: Iterable[str], pattern: Callable[[str], str]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(pattern, longest_first)) or r"(?!)")


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


def own_names(known: Names) -> tuple[str, ...]:
    """Names of this machine; the resolver is asked only about one that is not known yet."""
    import socket

    own = socket.gethostname()
    nodes = (texts for stand_in, texts in known.items() if _NODE.fullmatch(stand_in))
    return (own,) if any(own.lower() in texts for texts in nodes) else host_names()


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
