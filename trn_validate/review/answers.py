"""What ``answers`` prints: each open question with what a run says of it, then the guesses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from trn_validate.errors import UsageError
from trn_validate.review.guesses import Guess, guesses
from trn_validate.review.questions import QUESTIONS, Material, Question, real
from trn_validate.run import Run
from trn_validate.session import REPORTS
from trn_validate.store import Store
from trn_validate.vendor_record import newest_record

OPEN = "not asked yet: needs {}"


def show_answers(name: str | None, *, reports: Path | None = None, as_json: bool = False) -> int:
    """Print every open question with the answer of the named or the newest run; the status is 0.

    Without any run all of them are open, and that is an answer too.

    Raises:
        UsageError: the run that is named is not there.
        EvidenceError: a verdict of it cannot be read.
    """
    run = _run(Store(reports or REPORTS), name)
    material = material_of(run) if run else Material()
    found = answers(material)
    assumed = guesses()
    if as_json:
        print(json.dumps(_as_json(run, found, assumed), indent=2))
        return 0
    for line in (*_heading(run, material), *_lines(found), *_guess_lines(assumed)):
        print(line)
    return 0


def material_of(run: Run) -> Material:
    """What of a run was said by a Trn2 itself.

    Raises:
        EvidenceError: a verdict cannot be read.
    """
    read = ((stage, run.read(stage)) for stage in run.stages_present())
    verdicts = {stage: verdict for stage, verdict in read if verdict is not None}
    return real(verdicts, newest_record(run.folder))


def answers(material: Material) -> tuple[tuple[Question, str | None], ...]:
    """Every question with its answer, or None."""
    return tuple((question, question.read(material)) for question in QUESTIONS)


def _run(store: Store, name: str | None) -> Run | None:
    runs = store.runs()
    if name is None:
        return next(iter(runs), None)
    for run in runs:
        if run.name == Path(name).name:
            return run
    raise UsageError("there is no such run", where=name, todo=f"Look into {store.root}.")


def _heading(run: Run | None, material: Material) -> Iterator[str]:
    if run is None:
        yield "There is no run yet, so nothing was asked."
    elif not material.verdicts and material.vendor is None:
        yield f"Run {run.name}: nothing in it was said by a Trn2, so nothing was asked."
    else:
        yield f"Run {run.name}"
    yield ""


def _lines(found: tuple[tuple[Question, str | None], ...]) -> Iterator[str]:
    for question, answer in found:
        yield question.asks
        yield f"  {answer or OPEN.format(question.needs)}"
    open_ = sum(answer is None for _, answer in found)
    yield ""
    yield f"{len(found) - open_} of {len(found)} questions answered"


def _guess_lines(assumed: tuple[Guess, ...]) -> Iterator[str]:
    yield ""
    yield f"{len(assumed)} guesses in the sources, each to be confirmed by hand:"
    for guess in assumed:
        yield f"  {guess.file}:{guess.line}  {guess.what}"


def _as_json(
    run: Run | None, found: tuple[tuple[Question, str | None], ...], assumed: tuple[Guess, ...]
) -> dict[str, object]:
    return {
        "run": run.name if run else None,
        "questions": [
            {"id": q.id, "asks": q.asks, "answer": answer, "needs": None if answer else q.needs}
            for q, answer in found
        ],
        "guesses": [asdict(guess) for guess in assumed],
    }
