"""What a walk over the stages found, of each defect and of each layout without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.defects.defect import Defect
from trn_validate.check import Check
from trn_validate.ranks import RankRecord
from trn_validate.verdict import Outcome, Verdict

_OWN = frozenset({"seconds", "peak_memory_bytes"})
"""Fields of a record that no repetition has to have again."""


@dataclass(frozen=True)
class Finding:
    """What became of one defect."""

    defect: Defect
    outcome: Outcome
    failed: tuple[Check, ...]
    made: tuple[str, ...]
    """Names of all checks that the stage came to."""
    problem: str
    seconds: float


@dataclass(frozen=True)
class Repetition:
    """A layout without a defect, first and last in its process."""

    launch: str
    compared: int
    """Numbers and digests that were held against each other."""
    differing: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both gave the same bits, and there was something to compare."""
        return self.compared > 0 and not self.differing


@dataclass
class Findings:
    """All that was found."""

    clean: dict[str, Verdict] = field(default_factory=dict)
    defects: list[Finding] = field(default_factory=list)
    repetitions: list[Repetition] = field(default_factory=list)
    seconds: float = 0.0


def repetition(
    name: str, first: Mapping[int, RankRecord], last: Mapping[int, RankRecord]
) -> Repetition:
    """Hold against each other all that does not tell the time or the process."""
    ours, theirs = dict(_facts(first)), dict(_facts(last))
    # What one side lacks is a difference too.
    differing = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return Repetition(name, len(ours), tuple(differing))


def _facts(records: Mapping[int, RankRecord]) -> Iterator[tuple[str, object]]:
    for rank, record in records.items():
        for line in (*record.steps, *record.rank.states, *record.captures):
            values = line.model_dump(mode="json", exclude=set(_OWN))
            place = " ".join(str(values[key]) for key in ("step", "at", "what") if key in values)
            for key, value in values.items():
                yield f"rank {rank}, {values['kind']} {place}: {key}", value
        yield f"rank {rank}: complete", record.rank.complete
