"""Every way to alter a bundle, by name."""

from __future__ import annotations

import random
from collections.abc import Callable

from scripts import altered_files, altered_records, altered_verdicts
from scripts.altered_bundle import Bundle

__all__ = ["CONSISTENT_ALONE", "KINDS", "PLAIN_ALONE", "SIGNATURE", "Alteration", "Bundle"]

Alteration = Callable[[Bundle, random.Random], str]
"""Alters a bundle and says what it did; empty where this draw can alter nothing."""

KINDS: dict[str, Alteration] = {
    "measured": altered_verdicts.measured,
    "limit": altered_verdicts.limit,
    "outcome": altered_verdicts.outcome,
    "detail": altered_verdicts.detail,
    "times": altered_verdicts.times,
    "launch seconds": altered_verdicts.launch_seconds,
    "check dropped": altered_verdicts.drop_check,
    "stage dropped": altered_verdicts.drop_stage,
    "stage renamed": altered_verdicts.rename_stage,
    "record line dropped": altered_records.record_line,
    "rank dropped": altered_records.rank,
    "record": altered_records.record,
    "record little judged": altered_records.record_little_judged,
    "distance": altered_records.distance,
    "all distances": altered_records.all_distances,
    "files swapped": altered_records.swap,
    "plan": altered_files.plan,
    "measures, facts, versions": altered_verdicts.shown,
    "series": altered_verdicts.series,
    "layout": altered_verdicts.layout,
    "compared": altered_verdicts.compared,
    "command": altered_verdicts.command,
    "host": altered_verdicts.host,
    "rerun": altered_verdicts.rerun,
    "inputs": altered_verdicts.inputs,
    "environment": altered_files.environment,
    "observed": altered_files.observed,
    "spec": altered_files.spec,
    "document": altered_files.document,
    "any bit": altered_files.any_byte,
    "file added": altered_files.extra,
    "log": altered_files.log,
}
"""By name, as docs/review-bundle.md has them."""

SIGNATURE = frozenset({"times", "log", "distance", "all distances", "record little judged"})
"""Kinds of which some, made consistent, are told by a signature alone."""

PLAIN_ALONE = frozenset({"document", "any bit", "file added"})
"""Made consistent, these are undone, or are what other kinds do."""

CONSISTENT_ALONE: frozenset[str] = frozenset()
