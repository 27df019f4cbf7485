from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.builders import captured, closing, header, state, step
from trn_validate.base import Record
from trn_validate.errors import EvidenceError
from trn_validate.ranks import read_rank
from trn_validate.records import Communication, Compilation, rank_file


def write(folder: Path, *lines: Record, rank: int = 0, tail: str = "") -> Path:
    path = rank_file(folder, rank)
    text = "".join(line.model_dump_json() + "\n" for line in lines) + tail
    path.write_text(text, encoding="utf-8")
    return path


def test_all_lines_of_a_rank_are_read_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, header(), state(0, "start"), step(1), step(2), state(2), closing(2))
    record = read_rank(path)
    assert record is not None
    assert record.rank.header == header()
    assert record.steps == (step(1), step(2))
    assert record.rank.states == (state(0, "start"), state(2))
    assert record.rank.closing == closing(2)
    assert record.rank.complete


def test_a_rank_without_its_last_line_is_not_complete(tmp_path: Path) -> None:
    record = read_rank(write(tmp_path, header(), step(1)))
    assert record is not None
    assert record.rank.closing is None
    assert not record.rank.complete


@pytest.mark.parametrize("counted", [0, 1, 3])
def test_a_rank_that_counted_other_steps_than_it_wrote_is_not_complete(
    tmp_path: Path, counted: int
) -> None:
    record = read_rank(write(tmp_path, header(), step(1), step(2), closing(counted)))
    assert record is not None
    assert not record.rank.complete


def test_a_last_line_that_was_cut_off_is_no_record_yet(tmp_path: Path) -> None:
    whole = closing(1).model_dump_json()
    for length in (1, 20, len(whole)):
        record = read_rank(write(tmp_path, header(), step(1), tail=whole[:length]))
        assert record is not None
        assert record.steps == (step(1),)
        assert record.rank.closing is None


@pytest.mark.parametrize("tail", ["", "{", header().model_dump_json()])
def test_a_file_with_no_whole_line_has_no_record(tmp_path: Path, tail: str) -> None:
    assert read_rank(write(tmp_path, tail=tail)) is None


@pytest.mark.parametrize("broken", ["", "{}", "not json", '{"kind": "step"}', "null"])
def test_a_whole_line_that_is_no_record_is_refused_with_its_place(
    tmp_path: Path, broken: str
) -> None:
    path = write(tmp_path, header(), tail=f"{broken}\n{step(1).model_dump_json()}\n")
    with pytest.raises(EvidenceError) as caught:
        read_rank(path)
    assert caught.value.where == f"{path}:2"
    assert "not a record (" in caught.value.what
    assert "rerun the stage" in caught.value.todo


@pytest.mark.parametrize("first", [step(1), state(0), closing(0)], ids=lambda line: line.kind)
def test_a_file_that_does_not_begin_with_a_header_is_refused(tmp_path: Path, first: Record) -> None:
    path = write(tmp_path, first, header())
    with pytest.raises(EvidenceError, match="the first record is not a header") as caught:
        read_rank(path)
    assert caught.value.where == f"{path}:1"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot read the rank record"):
        read_rank(tmp_path / "rank-0.jsonl")
    (tmp_path / "rank-0.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(EvidenceError, match="cannot read the rank record"):
        read_rank(tmp_path / "rank-0.jsonl")


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x0b", "\x1c", "\r"])
def test_a_text_that_holds_a_separator_of_lines_does_not_end_its_record(
    tmp_path: Path, separator: str
) -> None:
    odd = header(launch=f"a{separator}b")
    record = read_rank(write(tmp_path, odd, step(1)))
    assert record is not None
    assert record.rank.header == odd
    assert record.steps == (step(1),)


def test_a_second_header_is_no_record_of_one_rank(tmp_path: Path) -> None:
    path = write(tmp_path, header(), step(1), header())
    with pytest.raises(EvidenceError, match="a second header"):
        read_rank(path)


# Lines of other kinds


COMMUNICATION = Communication(step=3, calls={"all_reduce": 2}, bytes={"all_reduce": 64})
COMPILATION = Compilation(blocks=2, graphs=3, calls=18, compiled_calls=18, seconds=9.0)


def test_what_a_rank_kept_is_read_in_its_order_between_its_steps(tmp_path: Path) -> None:
    start, gradient, end = (captured(what) for what in ("start", "gradient", "end"))
    lines = (header(), start, gradient, step(1), step(2), end, COMMUNICATION, COMPILATION)
    record = read_rank(write(tmp_path, *lines, closing(2)))
    assert record is not None
    assert record.captures == (start, gradient, end)
    assert record.steps == (step(1), step(2))
    assert (record.rank.communication, record.rank.compilation) == (COMMUNICATION, COMPILATION)
    assert record.rank.complete


def test_a_rank_that_was_asked_for_none_of_it_has_none(tmp_path: Path) -> None:
    record = read_rank(write(tmp_path, header(), step(1), closing(1)))
    assert record is not None
    assert record.captures == ()
    assert record.rank.communication is None
    assert record.rank.compilation is None


def test_a_step_that_was_taken_to_count_communication_is_none_of_the_steps(
    tmp_path: Path,
) -> None:
    record = read_rank(write(tmp_path, header(), step(1), step(2), COMMUNICATION, closing(2)))
    assert record is not None
    assert [line.step for line in record.steps] == [1, 2]
    assert record.rank.complete


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_survives_its_text(tmp_path: Path, value: float) -> None:
    bad = captured("gradient", norms={"norm.weight": value})
    record = read_rank(write(tmp_path, header(), bad))
    assert record is not None
    assert str(record.captures[0].norms["norm.weight"]) == str(value)


def test_a_capture_before_the_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="the first record is not a header"):
        read_rank(write(tmp_path, captured("start"), header()))
