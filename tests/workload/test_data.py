from __future__ import annotations

import hashlib
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from trn_validate.workload.data import (
    InvariantDataLoader,
    read_text,
    synthetic_sample,
    text_sample,
)

SEQ_LEN, GLOBAL, VOCAB = 16, 8, 2048


def loader(
    dp: int = 1, rank: int = 0, batch: int | None = None, **config: Any
) -> InvariantDataLoader:
    return InvariantDataLoader(
        InvariantDataLoader.Config(**{"vocab_size": VOCAB, "global_batch_size": GLOBAL, **config}),
        dp_world_size=dp,
        dp_rank=rank,
        seq_len=SEQ_LEN,
        local_batch_size=batch or GLOBAL // dp,
    )


def rows(one: InvariantDataLoader, steps: int) -> list[list[tuple[int, ...]]]:
    """Per step what a loader yields: each row with its labels and positions in one."""
    found: list[list[tuple[int, ...]]] = []
    batches = iter(one)
    for _ in range(steps):
        step: list[tuple[int, ...]] = []
        for inputs, labels in islice(batches, one.per_step // one.batch):
            whole = torch.cat([inputs["input"], labels, inputs["positions"]], dim=1)
            step += [tuple(row) for row in whole.tolist()]
        found.append(step)
    return found


def global_batches(dp: int, batch: int, steps: int = 3, **config: Any) -> list[set[Any]]:
    ranks = [rows(loader(dp, rank, batch, **config), steps) for rank in range(dp)]
    found = [[row for rank in ranks for row in rank[step]] for step in range(steps)]
    assert all(len(step) == len(set(step)) == GLOBAL for step in found)
    return [set(step) for step in found]


@pytest.mark.parametrize(
    ("dp", "batch"), [(1, 8), (2, 4), (4, 2), (8, 1), (1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]
)
def test_the_global_batch_of_a_step_is_the_same_set_in_every_layout(dp: int, batch: int) -> None:
    assert global_batches(dp, batch) == global_batches(1, GLOBAL)


@pytest.mark.parametrize("dp", [2, 4])
def test_the_ranks_of_a_text_share_one_global_batch_too(tmp_path: Path, dp: int) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(random.Random(1).randbytes(10_000))
    config: dict[str, Any] = {"dataset": "text", "dataset_path": str(text)}
    assert global_batches(dp, 1, **config) == global_batches(1, GLOBAL, **config)


@pytest.mark.parametrize("dp", [2, 4])
def test_a_rank_takes_its_equal_slice_of_the_global_batch_in_order(dp: int) -> None:
    slices = [rows(loader(dp, rank), 2) for rank in range(dp)]
    for step, whole in enumerate(rows(loader(), 2)):
        assert [row for rank in slices for row in rank[step]] == whole


def test_no_sample_is_seen_twice_in_the_first_steps() -> None:
    steps = global_batches(2, 4, steps=20)
    assert len(set().union(*steps)) == 20 * GLOBAL


def test_another_seed_gives_other_samples() -> None:
    assert not global_batches(1, 8, seed=1)[0] & global_batches(1, 8, seed=2)[0]


def test_a_loader_made_again_yields_the_same_in_the_same_order() -> None:
    assert rows(loader(2, 1, 2), 3) == rows(loader(2, 1, 2), 3)


def test_the_state_of_the_global_generator_changes_no_sample() -> None:
    torch.manual_seed(1)
    first = rows(loader(), 1)
    torch.manual_seed(2)
    assert rows(loader(), 1) == first


def test_labels_are_the_inputs_moved_by_one_and_positions_count_from_zero() -> None:
    inputs, labels = next(iter(loader()))
    assert torch.equal(inputs["input"][:, 1:], labels[:, :-1])
    assert torch.equal(inputs["positions"], torch.arange(SEQ_LEN).expand(GLOBAL, SEQ_LEN))
    for tensor in (inputs["input"], labels, inputs["positions"]):
        assert tensor.shape == (GLOBAL, SEQ_LEN)
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()


@pytest.mark.parametrize("then", [1, 2, 4, 8])
@pytest.mark.parametrize("first", [1, 2, 4])
def test_another_data_parallel_degree_continues_where_a_run_ended(first: int, then: int) -> None:
    before = [loader(first, rank, 1) for rank in range(first)]
    for one in before:
        rows(one, 2)
    states = [one.state_dict() for one in before]
    assert all(state == {"global_samples": 2 * GLOBAL} for state in states)
    after = set()
    for rank in range(then):
        one = loader(then, rank, 1)
        one.load_state_dict(states[0])
        after |= set(rows(one, 1)[0])
    assert after == global_batches(1, GLOBAL)[2]


def test_a_loader_continues_in_the_middle_of_a_step() -> None:
    whole = rows(loader(batch=1), 1)[0]
    one = loader(batch=1)
    list(islice(iter(one), 3))
    other = loader(batch=1)
    other.load_state_dict(one.state_dict())
    rest = [tuple(batch["input"][0].tolist()) for batch, _ in islice(iter(other), GLOBAL - 3)]
    assert rest == [row[:SEQ_LEN] for row in whole[3:]]


def test_an_empty_state_starts_afresh() -> None:
    one = loader()
    one.load_state_dict({})
    assert rows(one, 1) == rows(loader(), 1)


@pytest.mark.parametrize(("dp", "rank", "batch"), [(1, 0, 8), (1, 0, 2), (2, 1, 4), (4, 3, 1)])
def test_the_folded_generation_yields_the_same_tokens_in_one_dimension(
    dp: int, rank: int, batch: int
) -> None:
    folded = InvariantDataLoader(
        InvariantDataLoader.Config(vocab_size=VOCAB, global_batch_size=GLOBAL),
        dp_world_size=dp,
        dp_rank=rank,
        max_context_length=SEQ_LEN,
        num_tokens_per_batch=batch * SEQ_LEN,
        tokenizer=None,
    )
    pairs = zip(islice(iter(folded), 4), islice(iter(loader(dp, rank, batch)), 4), strict=True)
    for (flat, flat_labels), (inputs, labels) in pairs:
        assert flat["input"].shape == flat_labels.shape == flat["positions"].shape
        assert flat["input"].shape == (batch * SEQ_LEN,)
        assert torch.equal(flat["input"], inputs["input"].flatten())
        assert torch.equal(flat_labels, labels.flatten())
        assert torch.equal(flat["positions"], inputs["positions"].flatten())


@pytest.mark.parametrize(
    "handed",
    [
        {},
        {"seq_len": 16},
        {"local_batch_size": 2},
        {"max_context_length": 16},
        {"num_tokens_per_batch": 32},
        {"seq_len": 16, "num_tokens_per_batch": 32},
    ],
    ids=str,
)
def test_a_trainer_that_hands_neither_pair_is_refused(handed: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="neither seq_len and local_batch_size nor"):
        InvariantDataLoader(InvariantDataLoader.Config(), dp_world_size=1, dp_rank=0, **handed)


def test_a_global_batch_that_the_ranks_cannot_share_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"global_batch_size 8 is not divisible .* degree 3"):
        loader(3, 0, 1)


def test_a_synthetic_sample_is_a_function_of_seed_and_index_alone() -> None:
    first = synthetic_sample(42, 7, length=33, vocab_size=VOCAB)
    assert torch.equal(first, synthetic_sample(42, 7, length=33, vocab_size=VOCAB))
    assert not torch.equal(first, synthetic_sample(42, 8, length=33, vocab_size=VOCAB))
    assert not torch.equal(first, synthetic_sample(43, 7, length=33, vocab_size=VOCAB))


def test_the_largest_seed_of_a_plan_makes_samples() -> None:
    assert synthetic_sample(2**31 - 1, 10**9, length=4, vocab_size=VOCAB).shape == (4,)


def test_a_synthetic_sample_counts_upwards_in_small_steps_within_the_vocabulary() -> None:
    for index in range(50):
        sample = synthetic_sample(42, index, length=500, vocab_size=VOCAB)
        assert sample.dtype == torch.int64
        assert 0 <= int(sample.min()) <= int(sample.max()) < VOCAB
        assert set(((sample[1:] - sample[:-1]) % VOCAB).tolist()) == {1, 2, 3}


def test_a_text_sample_is_a_piece_of_the_text_as_tokens() -> None:
    data = bytes(range(256)) * 2
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    starts = set()
    for index in range(50):
        sample = text_sample(text, 42, index, length=17)
        piece = bytes(token - 1 for token in sample.tolist())
        assert piece in data
        starts.add(data.index(piece))
    assert len(starts) > 25
    assert torch.equal(text_sample(text, 42, 3, length=17), text_sample(text, 42, 3, length=17))


def test_a_text_of_exactly_one_sample_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"x" * 17)
    text = read_text(str(path), None, least=17)
    assert text_sample(text, 42, 0, length=17).tolist() == [ord("x") + 1] * 17


def test_a_text_that_is_shorter_than_a_sample_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"x" * SEQ_LEN)
    with pytest.raises(ValueError, match="has 16 bytes, but a sample takes 17"):
        loader(dataset="text", dataset_path=str(path))


def test_a_text_with_the_digest_that_the_plan_names_is_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"to be")
    digest = hashlib.sha256(b"to be").hexdigest()
    assert bytes(read_text(str(path), digest, least=1).tolist()) == b"to be"


def test_a_text_with_another_digest_is_refused_with_both(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"to be")
    found = hashlib.sha256(b"to be").hexdigest()
    with pytest.raises(ValueError, match=f"has sha256 {found}, the plan names {'ab' * 32}"):
        read_text(str(path), "ab" * 32, least=1)
