from __future__ import annotations

from typing import Any

import pytest

from tests.builders import ladder_of
from tests.fake_training import altered, imagined
from trn_validate.config import Plan
from trn_validate.describing import layout, series, speed, thing
from trn_validate.records import Step
from trn_validate.spec import Degrees

RUNGS = [
    {"name": "baseline"},
    {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
    {"name": "hsdp", "extends": "fsdp", "dp_replicate": 2},
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("plan"), RUNGS, seq_len=512)


def test_the_layout_is_told_in_full(plan: Plan) -> None:
    told = layout(imagined(plan, "hsdp"), "a model")
    assert (told.model, told.processes) == ("a model", 4)
    assert told.degrees == Degrees(dp_replicate=2, dp_shard=2)
    assert (told.tokens_per_step, told.local_batch_size, told.accumulation) == (2048, 1, 1)


def test_a_thing_names_its_processes_and_layout(plan: Plan) -> None:
    trial = imagined(plan, "fsdp")
    told = thing(trial, "parallelism.fsdp/3")
    assert told.attempt == "parallelism.fsdp/3"
    assert told.processes == tuple(header.process for header in trial.records.headers)
    assert told.layout == "dp_shard2, accumulation 1"


def test_series_have_a_value_for_every_step_and_the_seconds_of_the_slowest_rank(
    plan: Plan,
) -> None:
    slow = altered(Step, rank=1, step=2, seconds={"total": 9.0})
    told = series(imagined(plan, "fsdp", slow))
    assert {name: len(values) for name, values in told.items()} == {
        "loss": 6,
        "grad_norm": 6,
        "step_seconds": 6,
    }
    assert told["step_seconds"] == (0.5, 9.0, 0.5, 0.5, 0.5, 0.5)


def test_speed_leaves_the_first_step_out_and_takes_the_largest_memory(plan: Plan) -> None:
    told = speed(
        imagined(
            plan,
            "fsdp",
            altered(Step, step=1, seconds={"total": 100.0}),
            altered(Step, rank=1, step=3, peak_memory_bytes=2**31),
        )
    )
    assert told == {
        "peak_memory_bytes": 2.0**31,
        "step_seconds": 0.5,
        "tokens_per_second": 4096.0,
    }


def test_speed_of_a_single_step_is_not_told(plan: Plan) -> None:
    def only_one(launch: Any) -> None:
        launch.lines[0] = launch.lines[0][:2]

    assert set(speed(imagined(plan, "baseline", only_one))) == {"peak_memory_bytes"}
