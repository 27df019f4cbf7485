"""How the tokens of a mixture of experts are laid out for kernels: blocks of one expert each.

A kernel is compiled for fixed shapes, but how many tokens an expert gets is known only when it
runs. So rows are moved into blocks of 128 that belong to one expert; a kernel goes over a fixed
number of blocks and reads from a table whose weights each needs. The same idea, with a table from
block to expert, is in github.com/aws-neuron/nki-library (``experimental/moe``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trn_validate.kernels.tiles import ROWS


@dataclass(frozen=True)
class Blocks:
    """Where each row goes, for ``rows`` rows and E experts: ``rows // 128 + E`` blocks."""

    expert: torch.Tensor
    """(blocks, 1) int32: whose each block is, ascending; no expert is without a block."""
    more: torch.Tensor
    """(blocks, 1) float32: 1 where the block before is of the same expert, else 0."""
    source: torch.Tensor
    """(blocks * 128,) int64: the row that each place takes, or any row where it takes none."""
    taken: torch.Tensor
    """(blocks * 128, 1) bool: whether the place takes a row."""
    place: torch.Tensor
    """(rows,) int64: the place of each row, or any place where it has none."""
    routed: torch.Tensor
    """(rows, 1) bool: whether the row belongs to an expert; false behind the last one."""

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, columns) as (blocks * 128, columns), with zeros in the places that are free."""
        return torch.where(self.taken, rows[self.source], 0.0)

    def gathered(self, places: torch.Tensor) -> torch.Tensor:
        """(blocks * 128, columns) as (rows, columns), with zeros for rows without an expert."""
        return torch.where(self.routed, places[self.place], 0.0)


def lay_out(counts: torch.Tensor, rows: int) -> Blocks:
    """Blocks for ``rows`` rows, sorted by expert, of which expert e gets ``counts[e]`` (E,).

    Nothing here depends on a value of ``counts`` but values, so it can be compiled. An expert
    takes max(1, ceil(count / 128)) blocks; these sum to at most ``rows // 128 + E``. Blocks that
    are left over belong to the last expert and hold no row.
    """
    counts = counts.long()
    experts, device = counts.shape[0], counts.device
    number = rows // ROWS + experts
    ends, used = counts.cumsum(0), ((counts + ROWS - 1) // ROWS).clamp(min=1)
    starts, first = ends - counts, used.cumsum(0) - used

    block = torch.arange(number, device=device)
    owner = torch.searchsorted(used.cumsum(0), block, right=True).clamp(max=experts - 1)
    whose = owner.repeat_interleave(ROWS, output_size=number * ROWS)
    index = torch.arange(number * ROWS, device=device) - first[whose] * ROWS

    row = torch.arange(rows, device=device)
    of_row = torch.searchsorted(ends, row, right=True).clamp(max=experts - 1)
    place = first[of_row] * ROWS + row - starts[of_row]
    same = torch.cat([torch.zeros_like(owner[:1]), (owner[1:] == owner[:-1]).long()])
    return Blocks(
        expert=owner.int().view(-1, 1),
        more=same.float().view(-1, 1),
        source=(starts[whose] + index).clamp(0, rows - 1),
        taken=(index < counts[whose]).view(-1, 1),
        place=place.clamp(0, number * ROWS - 1),
        routed=(row < ends[-1]).view(-1, 1),
    )
