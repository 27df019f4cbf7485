"""A finding: one thing that is wrong with a host or an installation, and what to do about it.

What a finding is called, how grave it is and what to do about it stands once, in
:mod:`trn_validate.neuron.catalogue`; a reader of a source says only what it saw and where.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

from trn_validate.base import Record
from trn_validate.check import Check, none_found
from trn_validate.neuron.catalogue import CATALOGUE

T = TypeVar("T")

_SHOWN = 4
"""Findings that a check names before it only counts the rest: a line has to stay readable."""


class Finding(Record):
    """One thing that is wrong, with its place, its remedy and the text that it was told from."""

    id: str
    """Its key in the catalogue."""
    severity: Literal["error", "warning"]
    """An error fails the check that it belongs to; a warning is on record and fails nothing."""
    what: str
    where: str
    todo: str
    raw: str = ""
    """What the source printed or held, unchanged; the store redacts it."""

    def __str__(self) -> str:
        return f"{self.id}: {self.where}: {self.what}; {self.todo}"


class Read(NamedTuple, Generic[T]):
    """What the reader of one source gives back."""

    value: T | None
    """None where nothing could be read; a finding then says why."""
    findings: tuple[Finding, ...] = ()


def found(name: str, what: str, where: str, *, raw: str = "", todo: str = "") -> Finding:
    """Make the finding ``name``; ``todo`` goes before the catalogue's remedy.

    Raises:
        KeyError: the catalogue has no such finding.
    """
    entry = CATALOGUE[name]
    remedy = f"{todo}; {entry.todo}" if todo else entry.todo
    return Finding(id=name, severity=entry.severity, what=what, where=where, todo=remedy, raw=raw)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that fail a check."""
    return tuple(finding for finding in findings if finding.severity == "error")


def none_of(name: str, findings: Iterable[Finding]) -> Check:
    """Check that no error is among ``findings``; it names the first few."""
    bad = errors(findings)
    shown = " | ".join(str(finding) for finding in bad[:_SHOWN])
    rest = f" | and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return none_found(name, len(bad), shown + rest)


def facts_of(findings: Iterable[Finding]) -> dict[str, str]:
    """Findings as facts of a verdict, by their id; several of one id are put together."""
    told: dict[str, str] = {}
    for finding in findings:
        key = f"{finding.severity} {finding.id}"
        text = f"{finding.where}: {finding.what}; {finding.todo}"
        told[key] = f"{told[key]} | {text}" if key in told else text
    return told
