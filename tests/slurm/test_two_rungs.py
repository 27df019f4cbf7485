"""The two rungs that cross nodes, on a real Slurm, give what one node gives."""

from __future__ import annotations

import pytest

from scripts.slurm_cluster import NODES
from tests.slurm.conftest import Desk
from trn_validate.verdict import Outcome


@pytest.mark.parametrize(("rung", "ranks"), [("fsdp", 2), ("hsdp", 4)])
@pytest.mark.usefixtures("baseline")
def test_a_rung_over_two_nodes_equals_one_process(desk: Desk, rung: str, ranks: int) -> None:
    desk.walk(f"parallelism.{rung}")
    verdict = desk.verdict(f"parallelism.{rung}")
    assert verdict.outcome is Outcome.PASSED, verdict.failed_checks or verdict.problem
    assert verdict.layout is not None
    seats = verdict.layout.seats
    assert [seat.rank for seat in seats] == list(range(ranks))
    # Even, and each node's ranks follow each other.
    names = [seat.node for seat in seats]
    assert names == sorted(names, key=names.index)
    assert {name: names.count(name) for name in names} == {
        desk.name_of(name): ranks // 2 for name in NODES
    }
    assert all(seat.core and seat.peak_memory_bytes and seat.step_seconds for seat in seats)
    assert verdict.host.job is not None
    assert verdict.host.job.startswith("slurm ")
