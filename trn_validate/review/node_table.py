"""Which node carried what in launches over several: ranks, cores, memory, and who set the pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trn_validate.base import median
from trn_validate.parts import Seat
from trn_validate.review.cells import Table
from trn_validate.verdict import Verdict

_HEADER = ("stage", "node", "ranks", "cores", "peak GiB", "step s", "step / median rank")


def node_table(verdicts: Iterable[Verdict]) -> Table | None:
    """A row for each node of each stage that trained over several; None where none did."""
    rows = tuple(row for verdict in verdicts for row in _rows(verdict))
    return Table(_HEADER, rows, "Nodes of each launch over several") if rows else None


def _rows(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    seats = verdict.layout.seats if verdict.layout else ()
    usual = median([seat.step_seconds for seat in seats]) if seats else 0.0
    for node in dict.fromkeys(seat.node for seat in seats):
        own = [seat for seat in seats if seat.node == node]
        slowest = max(seat.step_seconds for seat in own)
        yield (
            verdict.stage,
            node,
            _joined(str(seat.rank) for seat in own),
            _joined(_cores(own)),
            f"{max(seat.peak_memory_bytes for seat in own) / 2**30:.2f}",
            f"{slowest:.3f}",
            f"{slowest / usual:.2f}" if usual else "-",
        )


def _cores(seats: Sequence[Seat]) -> Iterable[str]:
    """Each once: on the CPU the ranks of a node share them."""
    return dict.fromkeys(seat.core for seat in seats)


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
