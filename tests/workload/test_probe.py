from __future__ import annotations

import pytest
import torch

from trn_validate.workload.probe import MODULUS, rows_digest

ROWS, LENGTH = 4, 16


def columns(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 2048, (ROWS, LENGTH + 1), generator=generator)
    positions = torch.arange(LENGTH).expand(ROWS, LENGTH)
    return tokens[:, :-1], tokens[:, 1:], positions


def test_the_order_of_rows_does_not_matter() -> None:
    order = torch.tensor([2, 0, 3, 1])
    moved = [column[order] for column in columns()]
    assert rows_digest(*moved) == rows_digest(*columns())


def test_rows_of_several_ranks_add_up_to_those_of_one() -> None:
    parts = [rows_digest(*(c[i : i + 1] for c in columns())) for i in range(ROWS)]
    assert sum(parts) % MODULUS == rows_digest(*columns())


@pytest.mark.parametrize("which", [0, 1, 2], ids=["input", "label", "position"])
@pytest.mark.parametrize("row", range(ROWS))
@pytest.mark.parametrize("place", [0, LENGTH // 2, LENGTH - 1])
def test_any_single_token_label_or_position_matters(which: int, row: int, place: int) -> None:
    changed = [column.clone() for column in columns()]
    changed[which][row, place] += 1
    assert rows_digest(*changed) != rows_digest(*columns())


def test_a_label_under_the_row_of_another_input_matters() -> None:
    inputs, labels, positions = columns()
    swapped = labels[torch.tensor([1, 0, 2, 3])]
    assert rows_digest(inputs, swapped, positions) != rows_digest(inputs, labels, positions)


def test_inputs_and_labels_are_not_interchangeable() -> None:
    inputs, labels, positions = columns()
    assert rows_digest(labels, inputs, positions) != rows_digest(inputs, labels, positions)


def test_a_row_that_is_seen_twice_is_not_a_row_that_is_seen_once() -> None:
    once = columns()
    twice = [torch.cat([column, column[:1]]) for column in once]
    assert rows_digest(*twice) != rows_digest(*once)


def test_integer_width_and_memory_layout_do_not_matter() -> None:
    plain = columns()
    assert rows_digest(*(c.to(torch.int32) for c in plain)) == rows_digest(*plain)
    assert rows_digest(*(c.t().contiguous().t() for c in plain)) == rows_digest(*plain)


def test_no_rows_have_the_digest_zero_and_any_row_another_below_the_modulus() -> None:
    assert rows_digest(*(column[:0] for column in columns())) == 0
    assert 0 < rows_digest(*columns()) < MODULUS == 2**128
