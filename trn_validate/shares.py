"""The shares that nodes have in one launch, and what they come to together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trn_validate.supervisor import Ended, Facts

_ENDINGS: tuple[Ended, ...] = ("wall", "silence")
"""A limit that one node reached explains how the others ended, whatever they say."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """One node's share of a launch, as its supervisor left it."""

    node: str
    """Name of the node; empty where there is only this machine."""
    folder: Path
    facts: Facts

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that were seen on the node, in order."""
        return tuple(sorted(map(int, self.facts.rank_pids)))


def together(shares: Sequence[Share]) -> Facts:
    """How the whole launch ended, as its supervisors saw it; there is at least one share."""
    every = [share.facts for share in shares]
    failed = [facts for facts in every if facts.ended == "exited" and facts.exit_status]
    limited = [facts for facts in every if facts.ended in _ENDINGS]
    # Whoever ended by itself explains those that were asked to end after it.
    stopped = [facts for facts in every if facts.ended != "exited"]
    first = next(iter((*limited, *failed, *stopped, *every)))
    return Facts(
        ended=first.ended,
        exit_status=first.exit_status,
        seconds=max(facts.seconds for facts in every),
        rank_pids={rank: pid for facts in every for rank, pid in facts.rank_pids.items()},
        rank_gone={rank: at for facts in every for rank, at in facts.rank_gone.items()},
        leftovers=sum(facts.leftovers for facts in every),
        alive=[pid for facts in every for pid in facts.alive],
    )
