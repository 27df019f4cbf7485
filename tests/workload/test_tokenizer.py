from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trn_validate.workload.tokenizer import FIRST_BYTE, ByteTokenizer


def tokenizer(vocab_size: int = 2048) -> ByteTokenizer:
    return ByteTokenizer(ByteTokenizer.Config(vocab_size=vocab_size))


@given(text=st.text())
def test_a_text_survives_its_tokens(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text)) == text


@given(text=st.text())
def test_every_token_is_within_the_vocabulary_and_none_is_the_end(text: str) -> None:
    tokens = tokenizer(257).encode(text)
    assert len(tokens) == len(text.encode())
    assert all(0 < token < 257 for token in tokens)


def test_a_token_is_its_byte_and_one() -> None:
    assert tokenizer().encode("A\n") == [66, 11]
    assert FIRST_BYTE == 1


def test_markers_that_a_trainer_asks_for_are_not_added() -> None:
    assert tokenizer().encode("A", add_bos=True, add_eos=True) == [66]


def test_what_is_no_byte_is_left_out() -> None:
    assert tokenizer().decode([0, 66, 257, 2000, 67]) == "AB"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert tokenizer().decode([0xFF + FIRST_BYTE]) == "\ufffd"


@pytest.mark.parametrize("vocab_size", [257, 2048, 151936])
def test_the_vocabulary_is_the_models(vocab_size: int) -> None:
    made = tokenizer(vocab_size)
    assert made.get_vocab_size() == vocab_size
    assert made.eos_id == 0


@pytest.mark.parametrize("vocab_size", [0, 1, 256])
def test_a_vocabulary_that_cannot_hold_all_bytes_is_refused_with_its_size(vocab_size: int) -> None:
    with pytest.raises(ValueError, match=f"a vocabulary of {vocab_size} cannot hold 256 bytes"):
        tokenizer(vocab_size)
