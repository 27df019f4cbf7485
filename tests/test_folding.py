from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import header, ladder_of, state, step
from tests.fake_captures import MOMENTS, SHAPES
from tests.fake_training import (
    PARAMETERS,
    Defect,
    altered,
    carried_out,
    drifted,
    forgotten,
    imagined,
    imagined_ranks,
    without,
)
from tests.test_captures import RUNGS as FEW_RUNGS
from tests.test_judging import NAMES, RUNGS
from tests.test_ranks import write
from trn_validate.config import Plan
from trn_validate.errors import EvidenceError
from trn_validate.folded import Records
from trn_validate.folding import fold, read_ranks
from trn_validate.ranks import read_each
from trn_validate.records import Closing, Step, rank_file

TENSORS = list(SHAPES)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("plan"), RUNGS, seq_len=512)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("small"), FEW_RUNGS)


# Which ranks there are


def test_every_rank_that_left_a_header_is_found(tmp_path: Path) -> None:
    write(tmp_path, header(rank=0), rank=0)
    write(tmp_path, tail="{", rank=1)
    write(tmp_path, header(rank=3), rank=3)
    write(tmp_path, header(rank=4), rank=4)
    assert sorted(read_ranks(tmp_path, 4).ranks) == [0, 3]


def test_a_folder_without_records_has_no_ranks(tmp_path: Path) -> None:
    assert read_ranks(tmp_path, 4) == Records()


def test_ranks_whose_numbers_are_finite_have_none_that_is_not(tmp_path: Path) -> None:
    write(tmp_path, header(), step(1), step(2, loss=-1.0))
    assert read_ranks(tmp_path, 1).not_finite is None
    assert Records().not_finite is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_number_that_is_not_finite_is_found_with_its_step_and_rank(
    tmp_path: Path, name: str, value: float
) -> None:
    write(tmp_path, header(), step(1), step(2), rank=0)
    write(tmp_path, header(rank=1), step(1), step(2, **{name: value}), rank=1)
    assert read_ranks(tmp_path, 2).not_finite == (2, 1, name)


def test_the_first_step_counts_before_the_first_rank(tmp_path: Path) -> None:
    write(tmp_path, header(), step(1), step(2, loss=math.nan), rank=0)
    write(tmp_path, header(rank=1), step(1, grad_norm=math.nan), rank=1)
    write(tmp_path, header(rank=2), step(1, grad_norm=math.nan, loss=math.nan), rank=2)
    assert read_ranks(tmp_path, 3).not_finite == (1, 1, "grad_norm")
    rank_file(tmp_path, 1).unlink()
    assert read_ranks(tmp_path, 3).not_finite == (1, 2, "loss")


def test_a_file_that_holds_another_rank_is_refused(tmp_path: Path) -> None:
    write(tmp_path, header(rank=0), rank=1)
    with pytest.raises(EvidenceError, match="that of rank 0"):
        read_ranks(tmp_path, 2)


# Steps of all ranks together


@pytest.mark.parametrize("name", NAMES)
def test_every_layout_sees_the_same_global_batch(plan: Plan, name: str) -> None:
    reference = imagined(plan, "baseline").records.steps
    steps = imagined(plan, name).records.steps
    assert [s.step for s in steps] == [1, 2, 3, 4, 5, 6]
    assert {s.tokens for s in steps} == {2048}
    assert [s.rows for s in steps] == [s.rows for s in reference]
    assert not any(s.split for s in steps)
    assert [s.loss for s in steps] == pytest.approx([s.loss for s in reference], abs=1e-6)


def test_rows_are_counted_once_for_ranks_that_share_samples(plan: Plan) -> None:
    whole = imagined(plan, "baseline").records.steps[0]
    ranks = imagined_ranks(plan, "tp")
    assert len(ranks) == 4
    assert fold(ranks.items()).steps[0].rows == whole.rows
    assert sum(record.steps[0].tokens for record in ranks.values()) == 2 * whole.tokens


def test_digests_that_add_up_beyond_the_modulus_wrap(plan: Plan) -> None:
    trial = imagined(plan, "fsdp", altered(Step, rows="f" * 32))
    assert trial.records.steps[0].rows == "f" * 31 + "e"


def test_only_steps_that_every_rank_recorded_count(plan: Plan) -> None:
    trial = imagined(plan, "fsdp", without(Step, rank=1, step=4))
    assert [s.step for s in trial.records.steps] == [1, 2, 3, 5, 6]


def test_no_rank_makes_no_steps() -> None:
    assert Records().steps == ()


def test_the_loss_is_that_of_the_last_pipeline_stage(plan: Plan) -> None:
    trial = imagined(plan, "pp")
    assert imagined_ranks(plan, "pp")[0].steps[0].loss == -1
    assert trial.records.steps[0].loss == pytest.approx(7.64, abs=1e-5)


def test_a_loss_that_no_rank_holds_is_not_a_number(plan: Plan) -> None:
    trial = imagined(plan, "fsdp", altered(Step, loss_here=False))
    assert math.isnan(trial.records.steps[0].loss)


def test_parameters_of_each_pipeline_stage_count_once(plan: Plan) -> None:
    records = imagined(plan, "pp").records
    assert len(records.ranks) == 16
    assert records.parameters == PARAMETERS
    assert records.ranks[0].header.parameters < PARAMETERS
    assert Records().parameters == 0


def test_a_pipeline_stage_that_left_no_record_is_missed(plan: Plan) -> None:
    ranks = imagined_ranks(plan, "pp")
    del ranks[8]
    assert 0 < fold(ranks.items()).parameters < PARAMETERS


def test_a_state_of_a_rank_is_found_by_its_point_and_step(tmp_path: Path) -> None:
    write(tmp_path, header(), state(2, "start"), state(2), state(4))
    rank = read_ranks(tmp_path, 1).ranks[0]
    assert rank.state("end", 2) == state(2)
    assert rank.state("start", 2) == state(2, "start")
    assert rank.state("end", 3) is None
    assert rank.state("start", 4) is None


# Figures over ranks


def test_a_step_is_as_slow_as_its_slowest_rank_and_as_large_as_its_largest(tmp_path: Path) -> None:
    write(tmp_path, header(), step(1, seconds={"total": 2.0}, peak_memory_bytes=7), rank=0)
    write(tmp_path, header(rank=1), step(1, seconds={"total": 3.0}, peak_memory_bytes=5), rank=1)
    (found,) = read_ranks(tmp_path, 2).steps
    assert (found.seconds, found.peak_memory_bytes) == (3.0, 7)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_loss_that_is_no_number_makes_the_spread_none(plan: Plan, rank: int) -> None:
    records = imagined(plan, "tp", altered(Step, rank=rank, step=2, loss=math.nan)).records
    assert math.isnan(records.steps[1].loss_spread)
    assert records.steps[0].loss_spread < 1e-6


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_norm_that_is_no_number_makes_the_spread_none(plan: Plan, rank: int) -> None:
    records = imagined(plan, "tp", altered(Step, rank=rank, step=2, grad_norm=math.nan)).records
    assert math.isnan(records.steps[1].norm_spread)
    assert records.steps[0].norm_spread < 1e-6


def test_the_rank_that_most_often_sees_rows_again_is_found(tmp_path: Path) -> None:
    rows = ["1" * 32, "2" * 32, "3" * 32]
    for rank, order in enumerate(([0, 1, 2], [0, 0, 1], [2, 2, 2])):
        lines = [step(n, rows=rows[k]) for n, k in enumerate(order, 1)]
        write(tmp_path, header(rank=rank), *lines, rank=rank)
    assert read_ranks(tmp_path, 1).again[1] == ()
    assert read_ranks(tmp_path, 2).again == (1, (2,))
    assert read_ranks(tmp_path, 3).again == (2, (2, 3))


def test_each_shape_is_found_where_it_came_first(tmp_path: Path) -> None:
    write(tmp_path, header(), step(1), step(3, shapes=((2, 8), (1, 8))), rank=0)
    write(tmp_path, header(rank=1), step(1), step(2, shapes=((1, 8),)), rank=1)
    usual = step(1).shapes[0]
    assert read_ranks(tmp_path, 2).shapes == {usual: (1, 0), (2, 8): (3, 0), (1, 8): (2, 1)}


def test_the_last_step_is_that_of_any_rank(tmp_path: Path) -> None:
    write(tmp_path, header(), step(1), rank=0)
    write(tmp_path, header(rank=1), step(1), step(2), rank=1)
    records = read_ranks(tmp_path, 2)
    assert records.last_step == 2
    assert [s.step for s in records.steps] == [1]
    assert Records().last_step is None


# Whether the ranks gathered the same


@pytest.mark.parametrize("name", ["baseline", "fsdp", "pp"])
def test_ranks_that_gathered_the_same_agree(small: Plan, tmp_path: Path, name: str) -> None:
    assert carried_out(tmp_path, small, name).records.apart == ""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_replica_that_drifted_is_named_with_its_parameter(
    small: Plan, tmp_path: Path, moment: str
) -> None:
    trial = carried_out(tmp_path, small, "pp", drifted(3, moment, TENSORS[5]))
    assert trial.records.apart == f"{moment} of {TENSORS[5]}: rank 3 and rank 2 differ"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_kept_nothing_of_a_moment_has_not_agreed(
    small: Plan, tmp_path: Path, moment: str, rank: int
) -> None:
    trial = carried_out(tmp_path, small, "fsdp", forgotten(moment, rank))
    assert trial.records.apart == f"rank {rank} kept no {moment}"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_parameter_that_one_rank_alone_kept_is_named(
    small: Plan, tmp_path: Path, rank: int
) -> None:
    trial = carried_out(tmp_path, small, "fsdp")
    records = dict(read_each(Path(trial.spec.records), 2))
    start, gradient, end = records[rank].captures
    fewer = {name: digest for name, digest in end.digests.items() if name != TENSORS[2]}
    changed = end.model_copy(update={"digests": fewer})
    records[rank] = replace(records[rank], captures=(start, gradient, changed))
    assert fold(records.items()).apart == f"end of {TENSORS[2]}: rank 1 and rank 0 differ"


def test_a_rank_that_did_not_close_may_have_kept_everything(small: Plan, tmp_path: Path) -> None:
    trial = carried_out(tmp_path, small, "fsdp", altered(Closing, steps=0))
    assert trial.records.apart == ""


@pytest.mark.parametrize("defect", [drifted(1, "gradient", TENSORS[0]), forgotten("start", 0)])
def test_ranks_that_differ_hide_nothing_that_later_stages_kept(
    small: Plan, tmp_path: Path, defect: Defect
) -> None:
    records = carried_out(tmp_path, small, "pp", defect).records
    assert records.apart
    assert [line.stage for line in records.captures["end"]] == [0, 1]
