from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import ROOT
from trn_validate import plan
from trn_validate.errors import ConfigError
from trn_validate.ladder import resolve
from trn_validate.launching import request, run_spec
from trn_validate.spec import Degrees
from trn_validate.spreading import spread_problems

CPU, LARGE = ROOT / "configs" / "cpu.yaml", ROOT / "configs" / "trn2.48xlarge.yaml"
TWO = ("launcher=slurm", "nodes=2")


def test_one_node_crosses_nothing_whatever_the_rungs_say() -> None:
    found = plan.load(CPU)
    assert {rung.nodes_in(found) for rung in resolve(found.ladders[0])} == {1}


def test_over_two_nodes_the_rungs_that_cross_run_on_both_and_the_others_on_one() -> None:
    found = plan.load(CPU, settings=TWO)
    nodes = {rung.name: rung.nodes_in(found) for rung in resolve(found.ladders[0])}
    assert {name for name, count in nodes.items() if count == 2} == {"fsdp", "hsdp"}
    assert {name for name, count in nodes.items() if count == 1} >= {"baseline", "tp", "cp", "pp"}


def test_the_two_node_ladder_of_the_large_trn2_is_there_with_two_nodes_alone() -> None:
    assert "two_nodes" not in [ladder.name for ladder in plan.load(LARGE).ladders]
    found = plan.load(LARGE, settings=TWO)
    first, last = resolve(found.ladders[-1])
    assert (found.ladders[-1].name, str(first.degrees)) == ("two_nodes", "dp_shard32")
    assert (str(last.degrees), last.degrees.world_size) == ("dp_shard32 x tp4", 128)


def test_each_node_gets_an_even_share_of_the_ranks(tmp_path: Path) -> None:
    found = plan.load(LARGE, settings=TWO)
    for rung, share in zip(resolve(found.ladders[-1]), ("16", "64"), strict=True):
        argv = request(found, run_spec(found, rung, rung.name, tmp_path)).argv
        assert argv[argv.index("--nnodes") + 1] == "2"
        assert argv[argv.index("--nproc-per-node") + 1] == share


@pytest.mark.parametrize(
    ("degrees", "crosses", "problem"),
    [
        ({"dp_shard": 4}, "dp_shard", ""),
        ({"dp_shard": 4, "tp": 2, "cp": 2}, "dp_shard", ""),
        ({"dp_replicate": 2, "dp_shard": 3}, "dp_replicate", ""),
        ({"dp_shard": 3}, "dp_shard", "dp_shard 3 is not divisible"),
        ({"tp": 4}, "dp_shard", "dp_shard 1 is not divisible"),
        ({"dp_replicate": 2, "dp_shard": 2}, "dp_shard", "dp_replicate 2 is outside of it"),
        ({"dp_shard": 2, "pp": 2}, "dp_shard", "pp 2 is outside of it"),
        ({"dp_replicate": 2, "pp": 2}, "dp_replicate", "pp 2 is outside of it"),
    ],
)
def test_only_the_outermost_axis_can_be_split_evenly(
    degrees: dict[str, int], crosses: str, problem: str
) -> None:
    problems = list(spread_problems(Degrees(**degrees), crosses, 2))
    assert len(problems) == bool(problem)
    assert problem in "".join(problems)


@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
def test_tp_cp_and_pp_cannot_be_asked_to_cross(axis: str) -> None:
    with pytest.raises(ConfigError, match=r"rungs\.2\.crosses"):
        plan.load(CPU, settings=(*TWO, f"paths.native.ladders.debug.rungs.fsdp.crosses={axis}"))


def test_several_nodes_need_an_engine_that_joins_them() -> None:
    with pytest.raises(ConfigError, match="launcher local knows this machine alone"):
        plan.load(CPU, settings=("nodes=2",))


def test_several_nodes_that_no_rung_crosses_are_refused() -> None:
    rungs = "paths.native.ladders.debug.rungs"
    none = (f"{rungs}.fsdp.crosses=null", f"{rungs}.hsdp.crosses=null")
    with pytest.raises(ConfigError, match="no rung crosses them"):
        plan.load(CPU, settings=(*TWO, *none))


def test_a_plan_without_a_ladder_for_its_nodes_is_refused() -> None:
    with pytest.raises(ConfigError, match="no ladder is for a plan over 1 nodes"):
        plan.load(CPU, settings=("paths.native.ladders.debug.nodes=2",))


def test_the_cores_of_all_its_nodes_bound_a_rung() -> None:
    settings = (*TWO, "paths.native.ladders.debug.rungs.fsdp.dp_shard=8", "profile.cores=2")
    with pytest.raises(ConfigError, match="2 cores on each of 2 nodes"):
        plan.load(CPU, settings=settings)
