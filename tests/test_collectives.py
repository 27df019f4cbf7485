"""Which collectives a plan needs, and what stands in a rung's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders import load_plan, raw_deviations, raw_plan
from tests.fake_training import cpu_plan
from trn_validate.collectives import needed, needs, operations, sizes
from trn_validate.config import Plan
from trn_validate.ladder import ResolvedRung, resolve


def rung(plan: Plan, name: str) -> ResolvedRung:
    return next(r for ladder in plan.ladders for r in resolve(ladder) if r.name == name)


def names(plan: Plan, name: str) -> set[str]:
    return {str(one) for one in needs(rung(plan, name))}


COMMON = {"barrier", "objects", "all_reduce float32 scalar"}


def test_one_process_needs_nothing_and_every_number_of_processes_is_asked_once() -> None:
    plan = cpu_plan()
    assert sizes(plan) == (2, 4)
    assert names(plan, "baseline") == set()


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("ddp", {"all_reduce float32"}),
        ("fsdp", {"all_gather float32", "reduce_scatter float32"}),
        (
            "tp",
            {
                "all_gather float32 in groups of 2, 2 apart",
                "reduce_scatter float32 in groups of 2, 2 apart",
                "all_reduce float32 in groups of 2, 1 apart",
                "all_gather float32 in groups of 2, 1 apart",
                "reduce_scatter float32 in groups of 2, 1 apart",
            },
        ),
        (
            "hsdp",
            {
                "all_reduce float32 in groups of 2, 2 apart",
                "all_gather float32 in groups of 2, 1 apart",
                "reduce_scatter float32 in groups of 2, 1 apart",
            },
        ),
        (
            "cp",
            {
                "all_gather float32 in groups of 2, 2 apart",
                "reduce_scatter float32 in groups of 2, 2 apart",
                "all_gather float32 in groups of 2, 1 apart",
                "reduce_scatter float32 in groups of 2, 1 apart",
            },
        ),
        ("pp", {"send_recv float32", "all_reduce float32"}),
    ],
)
def test_a_layout_needs_what_its_axes_call_in_their_groups(name: str, own: set[str]) -> None:
    assert names(cpu_plan(), name) == COMMON | own


def experts(folder: Path, **workload: Any) -> Plan:
    raw = raw_plan()
    ladder = raw["paths"]["native"]["ladders"][0]
    ladder["model"] |= {"flavor": "debugmodel_moe", "layers": None}
    ladder["workload"] |= workload
    ladder["rungs"] = [
        {"name": "baseline"},
        {"name": "fsdp", "extends": "baseline", "dp_shard": 4},
        {"name": "ep", "extends": "fsdp", "ep": 2},
    ]
    return load_plan(folder, raw=raw)


@pytest.mark.parametrize(
    ("backend", "kind"), [("spmd_types", "all_to_all_list"), ("partial_dtensor", "all_to_all")]
)
def test_experts_need_an_exchange_of_uneven_parts_in_the_form_of_their_backend(
    tmp_path: Path, backend: str, kind: str
) -> None:
    plan = experts(tmp_path, spmd_backend=backend)
    asked = f"{kind} float32 uneven in groups of 2, 1 apart"
    assert asked in names(plan, "ep") and asked not in names(plan, "fsdp")
    assert asked in needed(plan, 4)


def test_a_ladder_in_bfloat16_moves_its_activations_in_it_and_its_gradients_in_float32(
    tmp_path: Path,
) -> None:
    raw = raw_plan()
    raw["limits"]["bfloat16"] = raw_deviations()
    raw["paths"]["native"]["ladders"][0]["workload"]["compute_dtype"] = "bfloat16"
    found = names(load_plan(tmp_path, raw=raw), "next")
    assert found == COMMON | {"all_gather bfloat16", "reduce_scatter float32"}


def test_all_that_a_rung_needs_is_asked_and_may_neither_hang_nor_crash() -> None:
    plan = cpu_plan()
    for one in (r for ladder in plan.ladders for r in resolve(ladder)):
        world = one.degrees.world_size
        wanted = {str(need) for need in needs(one)}
        if world > 1:
            assert wanted
            assert wanted <= {str(asked) for asked in operations(plan, world)}
            assert wanted <= needed(plan, world)


def test_no_operation_is_asked_twice_under_one_name() -> None:
    plan = cpu_plan()
    for world in sizes(plan):
        asked = [str(one) for one in operations(plan, world)]
        assert len(asked) == len(set(asked)) > 30


def test_a_rung_that_is_added_at_a_known_size_asks_nothing_anew(tmp_path: Path) -> None:
    raw = raw_plan()
    before = load_plan(tmp_path, raw=raw)
    raw["paths"]["native"]["ladders"][0]["rungs"].append(
        {"name": "pp", "extends": "baseline", "pp": 2}
    )
    after = load_plan(tmp_path, raw=raw)
    assert operations(after, 2) == operations(before, 2)
    assert needed(after, 2) == needed(before, 2)
