"""What a stage leaves beside its records, so that its answer can be computed again."""

from __future__ import annotations

import json

from trn_validate import distances, observed
from trn_validate.base import Record
from trn_validate.distances import Measuring
from trn_validate.observed import Ended, Looking, Observed
from trn_validate.paths import write_atomic
from trn_validate.stage import Context


def leave(context: Context) -> tuple[str, ...]:
    """Write what the stage saw and measured into the private folder of its attempt.

    Gives the files' names relative to the run folder, where their copies will be.

    Raises:
        FolderError: they could not be written.
    """
    private, found = context.attempt.private, list[str]()

    def write(name: str, record: Record) -> None:
        # One value a line: the text is redacted line by line, and read by people.
        text = json.dumps(record.model_dump(mode="json"), indent=1)
        write_atomic(private / name, f"{text}\n".encode(), sync=False)
        found.append(f"{context.attempt.relative}/{name}")

    launches = tuple(Ended.of(result, private) for result in context.ended)
    seen = context.observer.seen if isinstance(context.observer, Looking) else {}
    if launches or seen:
        write(observed.NAME, Observed(launches=launches, seen=seen))
    if isinstance(context.meter, Measuring) and context.meter.distances.comparisons:
        write(distances.NAME, context.meter.distances)
    return tuple(found)
