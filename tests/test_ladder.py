from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import CONFIGS, load_plan, plan_refusal, raw_ladder, raw_plan
from trn_validate import plan, yaml_file
from trn_validate.config import LadderSection
from trn_validate.control import MEASURES
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.spec import AXES

NEURON = [
    "profile.device=neuron",
    "profile.instance_type=trn2.3xlarge",
    "profile.devices=1",
    "profile.logical_nc_config=2",
]
"""What turns a plan of the CPU into one of a Neuron device."""
LADDER = "paths.native.ladders.debug"
NEXT = f"{LADDER}.rungs.next"
MOE = f"{LADDER}.model={{module: torchtitan.models.qwen3, flavor: debugmodel_moe, layers: 2}}"


def rungs(*entries: dict[str, Any]) -> tuple[ResolvedRung, ...]:
    ladder = raw_ladder() | {"rungs": list(entries)}
    return resolve(LadderSection.model_validate_json(json.dumps(ladder)))


def adding(**degrees: int) -> str:
    """A setting that replaces the second rung by one that adds these degrees."""
    entry = ", ".join(f"{axis}: {value}" for axis, value in degrees.items())
    return f"{NEXT}={{name: next, extends: baseline, {entry}}}"


def problem(folder: Path, *settings: str) -> str:
    error = plan_refusal(folder, *settings)
    assert error.where == f"{folder / 'plan.yaml'}: path native, ladder debug"
    return error.what


def test_a_rung_adds_its_dimension_to_those_of_the_rung_that_it_extends() -> None:
    found = rungs(
        {"name": "baseline"},
        {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
        {"name": "tp", "extends": "fsdp", "tp": 4},
        {"name": "cp", "extends": "fsdp", "cp": 8},
    )
    assert [str(rung.degrees) for rung in found] == [
        "one process",
        "dp_shard2",
        "dp_shard2 x tp4",
        "dp_shard2 x cp8",
    ]
    assert [rung.adds for rung in found] == [None, "dp_shard", "tp", "cp"]
    assert [rung.extends for rung in found] == [None, "baseline", "fsdp", "fsdp"]
    assert [rung.degrees.world_size for rung in found] == [1, 2, 8, 16]


def test_a_rung_may_repeat_the_degrees_that_are_there_already() -> None:
    found = rungs(
        {"name": "baseline"},
        {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
        {"name": "tp", "extends": "fsdp", "dp_shard": 2, "tp": 2},
    )
    assert found[2].adds == "tp"


def test_the_first_rung_may_start_with_one_dimension() -> None:
    (first,) = rungs({"name": "start", "dp_shard": 16, "tp": 1})
    assert (first.degrees.dp_shard, first.adds, first.extends) == (16, None, None)


def test_experts_are_laid_over_ranks_that_exist_and_add_none() -> None:
    found = rungs({"name": "start", "dp_shard": 4}, {"name": "ep", "extends": "start", "ep": 4})
    assert found[1].degrees.world_size == found[0].degrees.world_size == 4
    assert found[1].local_batch_size == found[0].local_batch_size == 1


def test_the_local_batch_follows_from_the_data_parallel_degree_alone() -> None:
    found = rungs(
        {"name": "baseline"},
        {"name": "ddp", "extends": "baseline", "dp_replicate": 2},
        {"name": "hsdp", "extends": "ddp", "dp_shard": 2},
        {"name": "tp", "extends": "ddp", "tp": 2},
        {"name": "pp", "extends": "baseline", "pp": 2},
    )
    assert [rung.local_batch_size for rung in found] == [4, 2, 1, 2, 4]
    assert {rung.tokens_per_step for rung in found} == {1024}


def test_a_rung_names_the_stage_that_judges_it() -> None:
    assert rungs({"name": "baseline"})[0].stage == "parallelism.baseline"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_all_rungs_of_a_shipped_ladder_have_equal_tokens_per_step(config: Path) -> None:
    for model_path in yaml_file.read(config)["paths"]:
        for ladder in plan.load(config, model_path=model_path).ladders:
            tokens = ladder.workload.global_batch_size * ladder.workload.seq_len
            for rung in resolve(ladder):
                assert rung.tokens_per_step == tokens
                whole = rung.local_batch_size * rung.degrees.data_parallel
                assert whole * ladder.workload.seq_len == tokens


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_the_rungs_of_a_shipped_plan_have_names_of_their_own(config: Path) -> None:
    for model_path in yaml_file.read(config)["paths"]:
        ladders = plan.load(config, model_path=model_path).ladders
        names = [rung.name for ladder in ladders for rung in ladder.rungs]
        assert len(set(names)) == len(names)


def test_every_dimension_can_be_added(tmp_path: Path) -> None:
    for axis in AXES:
        settings = [adding(**{axis: 2})]
        if axis == "ep":
            settings = [MOE, f"{LADDER}.rungs.baseline.dp_shard=2", *settings]
        found = load_plan(tmp_path, *settings)
        assert resolve(found.ladders[0])[1].adds == axis


def test_a_rung_that_adds_two_dimensions_is_refused_with_both(tmp_path: Path) -> None:
    assert problem(tmp_path, adding(tp=2, dp_shard=4)) == (
        "rung next: adds dp_shard 4 and tp 2 to baseline; "
        "a rung adds exactly one, so that a difference has one cause"
    )


@pytest.mark.parametrize("entry", ["", ", tp: 1", ", dp_shard: 1, tp: 1"])
def test_a_rung_that_adds_no_dimension_is_refused(tmp_path: Path, entry: str) -> None:
    setting = f"{NEXT}={{name: next, extends: baseline{entry}}}"
    assert problem(tmp_path, setting).startswith("rung next: adds no dimension to baseline; ")


def test_a_rung_that_changes_a_dimension_is_refused_with_both_degrees(tmp_path: Path) -> None:
    assert problem(tmp_path, f"{LADDER}.rungs.baseline.dp_shard=4") == (
        "rung next: changes dp_shard from 4 to 2; "
        "a rung adds a dimension and leaves those that are there"
    )


def test_a_rung_that_takes_a_dimension_away_is_refused(tmp_path: Path) -> None:
    found = problem(tmp_path, f"{LADDER}.rungs.baseline.tp=4", adding(tp=1))
    assert found.startswith("rung next: changes tp from 4 to 1; ")


@pytest.mark.parametrize("extends", ["next", "nobody", "''", "later"])
def test_a_rung_has_to_extend_an_earlier_one(tmp_path: Path, extends: str) -> None:
    found = problem(tmp_path, f"{NEXT}.extends={extends}")
    assert found.endswith("it has to name an earlier rung: baseline")


def test_a_later_rung_that_extends_nothing_is_refused(tmp_path: Path) -> None:
    found = problem(tmp_path, f"{NEXT}={{name: next, dp_shard: 2}}")
    assert found == "rung next: extends is None; it has to name an earlier rung: baseline"


def test_the_first_rung_extends_nothing(tmp_path: Path) -> None:
    found = problem(tmp_path, f"{LADDER}.rungs.baseline.extends=next")
    assert found == "rung baseline: it is the first of its ladder, so it extends nothing"


def test_the_first_rung_starts_with_one_dimension_at_most(tmp_path: Path) -> None:
    found = problem(tmp_path, f"{LADDER}.rungs.baseline={{name: baseline, dp_shard: 2, tp: 4}}")
    assert found == (
        "rung baseline: the first rung may start with one dimension, not dp_shard 2 and tp 4"
    )


def test_two_rungs_of_a_ladder_with_one_name_are_refused(tmp_path: Path) -> None:
    found = problem(tmp_path, f"{NEXT}.name=baseline")
    assert found == "rung baseline: the name is taken by an earlier rung"


def test_two_rungs_of_different_ladders_with_one_name_are_refused(tmp_path: Path) -> None:
    raw = raw_plan()
    raw["paths"]["native"]["ladders"].append(raw_ladder() | {"name": "full"})
    error = plan_refusal(tmp_path, raw=raw)
    assert error.where.endswith(": path native, ladder full")
    assert error.what == "rung baseline: ladder debug has a rung of that name"
    assert "Names are unique in a plan" in error.todo


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (
            [adding(dp_shard=3)],
            "global_batch_size 4 is not divisible by the data-parallel degree 3, "
            "so tokens per step cannot stay what they are",
        ),
        (
            [f"{LADDER}.rungs.baseline.dp_replicate=2", adding(dp_shard=4)],
            "global_batch_size 4 is not divisible by the data-parallel degree 8, "
            "so tokens per step cannot stay what they are",
        ),
        (
            ["profile.cores=1"],
            "needs 2 processes (dp_shard2), but the profile has 1 cores",
        ),
        (
            ["profile.cores=7", f"{LADDER}.rungs.baseline.tp=4"],
            "needs 8 processes (dp_shard2 x tp4), but the profile has 7 cores",
        ),
        ([adding(tp=32)], "the model's 16 heads are not divisible by tp 32"),
        ([adding(tp=16)], "the model's 8 kv heads are not divisible by tp 16"),
        (
            [f"{LADDER}.workload.seq_len=257", adding(tp=2)],
            "seq_len 257 is not divisible by tp 2",
        ),
        ([adding(cp=4)], "seq_len 256 is not divisible by cp x 128 = 512"),
        (
            [f"{LADDER}.workload.seq_len=384", adding(cp=2)],
            "seq_len 384 is not divisible by cp x 128 = 256",
        ),
        ([adding(pp=3)], "pp 3 over 2 layers leaves a stage without one"),
        (
            [f"{LADDER}.workload.global_batch_size=1", adding(pp=2)],
            "1 microbatches are fewer than the 2 stages of pp",
        ),
        (
            [f"{LADDER}.rungs.baseline.dp_shard=4", adding(pp=2)],
            "1 microbatches are fewer than the 2 stages of pp",
        ),
        (
            [f"{LADDER}.model.tied=true", adding(pp=2)],
            "pp 2 with tied weights: the embedding and the head are on different stages",
        ),
        ([adding(ep=2)], "ep 2, but the model has no experts"),
        (
            [
                MOE,
                f"{LADDER}.workload.global_batch_size=3",
                f"{LADDER}.rungs.baseline.dp_shard=3",
                adding(ep=3),
            ],
            "the model's 64 experts are not divisible by ep 3",
        ),
        (
            [MOE, adding(ep=2)],
            "ep 2 does not divide dp_shard x cp x tp = 1, over which it is laid",
        ),
        (
            [MOE, f"{LADDER}.rungs.baseline.dp_replicate=2", adding(ep=2)],
            "ep 2 does not divide dp_shard x cp x tp = 1, over which it is laid",
        ),
        (
            [f"{LADDER}.workload.attention=causal", adding(cp=2)],
            "attention causal knows no cp, but the rung has cp 2",
        ),
    ],
)
def test_a_rung_that_cannot_hold_is_refused_with_its_numbers(
    tmp_path: Path, settings: list[str], what: str
) -> None:
    assert problem(tmp_path, *settings) == f"rung next: {what}"


def test_a_sequence_is_split_evenly_over_twice_cp_and_over_tp(tmp_path: Path) -> None:
    # Tensor parallelism splits the sequence as well, and cp balances it in 2 x cp pieces.
    model = (
        "{module: x, flavor: y, shape: {dim: 256, layers: 2, heads: 256, kv_heads: 256, "
        "vocab_size: 2048, tied: false}}"
    )
    changes = [
        f"{LADDER}.model={model}",
        "profile.cores=512",
        f"{LADDER}.rungs.baseline.tp=256",
        adding(cp=2),
    ]
    found = problem(tmp_path, *changes)
    assert found == "rung next: seq_len 256 is not divisible by 2 x cp x tp = 1024"


def test_cp_over_whole_blocks_is_accepted(tmp_path: Path) -> None:
    found = load_plan(tmp_path, f"{LADDER}.workload.seq_len=512", adding(cp=4))
    assert resolve(found.ladders[0])[1].degrees.cp == 4


def test_causal_attention_without_cp_is_accepted(tmp_path: Path) -> None:
    found = load_plan(tmp_path, f"{LADDER}.workload.attention=causal")
    assert found.ladders[0].workload.attention == "causal"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ([], "FlexAttention has no backward on the CPU"),
        (
            NEURON,
            "FlexAttention is refused on a neuron device",
        ),
    ],
)
def test_stock_attention_is_refused_on_either_device_with_the_reason(
    tmp_path: Path, settings: list[str], reason: str
) -> None:
    found = problem(tmp_path, f"{LADDER}.workload.attention=stock", *settings)
    assert found == f"rung baseline: attention stock: {reason}; take dense_mask or causal"


def test_a_flavor_that_the_table_does_not_know_is_refused_with_those_that_it_knows(
    tmp_path: Path,
) -> None:
    found = problem(tmp_path, f"{LADDER}.model.flavor=8b")
    assert found.startswith("no flavor '8b' in 'torchtitan.models.qwen3'; known are: debugmodel, ")


def test_a_module_that_the_table_does_not_know_has_to_state_its_shape(tmp_path: Path) -> None:
    found = problem(tmp_path, f"{LADDER}.model.module=my.models")
    assert found == "no flavor 'debugmodel' in 'my.models'; state its shape in the plan"


def test_more_layers_than_the_flavor_has_are_refused_with_both_numbers(tmp_path: Path) -> None:
    found = problem(tmp_path, f"{LADDER}.model.layers=9")
    assert found == "layers is 9, but 'debugmodel' has 8"


def test_tying_a_flavor_with_untied_weights_is_refused(tmp_path: Path) -> None:
    changes = [f"{LADDER}.model.flavor=8B", f"{LADDER}.model.tied=true"]
    assert problem(tmp_path, *changes) == (
        "tied is true, but '8B' has untied weights; tying them makes another model"
    )


def test_a_model_is_cut_and_untied_as_the_plan_says(tmp_path: Path) -> None:
    shape = load_plan(tmp_path).ladders[0].model.resolved()
    assert (shape.layers, shape.tied, shape.heads) == (2, False, 16)


def test_a_model_is_named_with_what_the_plan_changes_in_it(tmp_path: Path) -> None:
    model = load_plan(tmp_path).ladders[0].model
    assert str(model) == "torchtitan.models.qwen3 debugmodel, 2 layers, untied"
    assert str(model.model_copy(update={"layers": None, "tied": None})) == (
        "torchtitan.models.qwen3 debugmodel"
    )


def test_numbers_of_any_length_are_refused_and_raise_nothing_else(tmp_path: Path) -> None:
    huge = "9" * 3000
    error = plan_refusal(tmp_path, f"{LADDER}.rungs.baseline.tp={huge}", adding(dp_shard=2))
    assert "less than or equal to 2147483647" in error.what
    assert len(error.what) < 200


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_neuron_plan_that_does_not_name_its_machine_is_refused(
    tmp_path: Path, number: int
) -> None:
    settings = [setting for setting in NEURON if setting != NEURON[number]]
    field = NEURON[number].partition("=")[0]
    assert f"{field} is missing" in plan_refusal(tmp_path, *settings).what


# What decides between its rungs


BOUNDS = "limits.float32"
BFLOAT16 = f"{LADDER}.workload.compute_dtype=bfloat16"


def bounds(name: str, floor: float, ceiling: float) -> str:
    return f"{BOUNDS}.{name}={{floor: {floor}, ceiling: {ceiling}}}"


def test_a_ladder_that_computes_in_a_dtype_without_limits_is_refused(tmp_path: Path) -> None:
    found = problem(tmp_path, BFLOAT16)
    assert found == "compute_dtype is bfloat16, but the plan has no limits.bfloat16"


def test_limits_of_a_dtype_that_no_ladder_computes_in_may_be_missing(tmp_path: Path) -> None:
    raw = raw_plan()
    raw["limits"]["bfloat16"] = raw["limits"].pop("float32")
    found = load_plan(tmp_path, BFLOAT16, raw=raw)
    assert found.limits.float32 is None
    assert found.limits.of("bfloat16") == found.limits.bfloat16


@pytest.mark.parametrize("name", ["grad_norm_relative", "gradient_relative"])
@pytest.mark.parametrize(
    ("floor", "ceiling", "factor"), [(1e-3, 0.0501, 5), (0.25, 0.25, 1), (0.3, 0.4, 1)]
)
def test_a_limit_by_which_a_quarter_of_a_gradient_may_be_wrong_is_refused(
    tmp_path: Path, name: str, floor: float, ceiling: float, factor: float
) -> None:
    found = problem(tmp_path, bounds(name, floor, ceiling), f"limits.factor={factor}")
    assert found == (
        f"{BOUNDS}.{name}: a limit could reach 0.25 "
        f"(floor {floor}, ceiling {ceiling}, factor {float(factor)})"
    )


@pytest.mark.parametrize(("floor", "ceiling", "factor"), [(1e-3, 0.05, 5), (0.2499, 0.25, 1)])
def test_a_limit_that_stays_below_a_quarter_of_a_gradient_is_accepted(
    tmp_path: Path, floor: float, ceiling: float, factor: float
) -> None:
    settings = (bounds("gradient_relative", floor, ceiling), f"limits.factor={factor}")
    found = load_plan(tmp_path, *settings).limits.of("float32").gradient_relative
    assert (found.floor, found.ceiling) == (floor, ceiling)


def test_a_dtype_may_have_a_factor_of_its_own(tmp_path: Path) -> None:
    own = (f"{BOUNDS}.factor=1", bounds("gradient_relative", 0.01, 0.2))
    assert load_plan(tmp_path, *own).limits.factor_of("float32") == 1.0
    assert "factor 2.0" in problem(tmp_path, f"{BOUNDS}.factor=2", *own[1:])


@pytest.mark.parametrize("name", MEASURES)
def test_a_floor_above_its_ceiling_is_refused(tmp_path: Path, name: str) -> None:
    error = plan_refusal(tmp_path, bounds(name, 2e-3, 1e-3))
    assert error.what.startswith(f"{BOUNDS}.{name}: ")
    assert "the floor 0.002 is above the ceiling 0.001" in error.what


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("part", ["floor", "ceiling"])
def test_a_bound_that_is_missing_is_refused_and_never_a_default(
    tmp_path: Path, name: str, part: str
) -> None:
    raw = raw_plan()
    del raw["limits"]["float32"][name][part]
    assert plan_refusal(tmp_path, raw=raw).what == f"{BOUNDS}.{name}.{part}: field required"
    del raw["limits"]["float32"][name]
    assert plan_refusal(tmp_path, raw=raw).what == f"{BOUNDS}.{name}: field required"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_plan_has_limits_for_every_dtype_that_it_computes_in(config: Path) -> None:
    for model_path in yaml_file.read(config)["paths"]:
        found = plan.load(config, model_path=model_path)
        for ladder in found.ladders:
            limits = found.limits.of(ladder.workload.compute_dtype)
            factor = found.limits.factor_of(ladder.workload.compute_dtype)
            assert factor * limits.gradient_relative.ceiling <= 0.25
