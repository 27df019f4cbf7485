"""The rehearsal device, and each way in which it can be told to misbehave."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from scripts import rehearsal
from stages import stages_of
from stages.environment_ops import OpsStage
from tests.builders import ROOT
from tests.e2e.conftest import Finished, pipeline
from tests.fake_training import Rig
from trn_validate import plan as plans
from trn_validate.launch_local import LocalLauncher
from trn_validate.stage import Stage
from trn_validate.target import HOST_ROOT, choose, read_signs
from trn_validate.verdict import Outcome, Verdict

pytestmark = pytest.mark.e2e

RUNGS = "paths.native.ladders.debug.rungs"
TWO = f"{RUNGS}=[{{name: baseline}}, {{name: fsdp, extends: baseline, dp_shard: 2}}]"
ONE = f"{RUNGS}=[{{name: baseline}}]"
COLLECTIVES = "environment.collectives"

Misbehave = Callable[..., None]


@pytest.fixture(scope="session")
def built() -> Path:
    """The device; it is made once for these sources."""
    return rehearsal.build()


@pytest.fixture
def told(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Misbehave:
    """Puts the device on the path of what is started, with a host of its own."""
    host = tmp_path / "host"
    rehearsal.make_host(built, host)
    for name, value in rehearsal.surroundings(built, host, {}).items():
        monkeypatch.setenv(name, value)

    def tell(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"NEURON_REHEARSAL_{name}", value)

    return tell


def carried_out(folder: Path, stage: Stage, *settings: str) -> Verdict:
    """The verdict of one stage alone, by real launches."""
    plan = plans.load(ROOT / "configs/rehearsal.yaml", settings=settings)
    choice = choose(read_signs(Path(os.environ[HOST_ROOT])))
    rig = Rig(folder, plan=plan, stages=[stage], choice=choice)
    rig.launcher = LocalLauncher()  # type: ignore[assignment]  # the executor takes any launcher
    rig.walk()
    return rig.verdict(stage.id)


def named(stage: str, *settings: str) -> Stage:
    """A stage of the rehearsal's plan."""
    plan = plans.load(ROOT / "configs/rehearsal.yaml", settings=settings)
    return next(one for one in stages_of(plan) if one.id == stage)


def states(found: Verdict) -> Mapping[str, str]:
    return {one.operation: one.state for one in found.capabilities}


def test_an_operation_that_is_wrong_and_one_that_falls_back_are_each_told_from_right_ones(
    told: Misbehave, tmp_path: Path
) -> None:
    told(FAULT="aten::mm=scale,aten::topk=fallback")
    found = carried_out(tmp_path, OpsStage(operations=("matmul", "topk", "cumsum")))
    assert found.outcome is Outcome.FAILED
    assert states(found) == {"matmul": "wrong", "topk": "wrong", "cumsum": "right"}
    failed = {check.name: check.detail for check in found.failed_checks}
    assert "matmul: largest error" in failed
    assert failed["topk: fallbacks to the CPU"] == "aten::topk"
    # The very processes that computed were counted, by the driver of the imitated host.
    assert found.execution is not None
    assert (found.execution.after or 0) > (found.execution.before or 0) + 20
    assert found.hooks == ()


def test_an_uneven_exchange_that_is_refused_and_a_crash_on_the_way_out_are_on_record(
    told: Misbehave, tmp_path: Path
) -> None:
    told(LIMITS="even_alltoall", FAULT="c10d::shutdown=segv")
    found = carried_out(tmp_path, named(COLLECTIVES, TWO), TWO)
    assert found.outcome is Outcome.PASSED, [str(check) for check in found.failed_checks]
    assert states(found)["all_to_all float32 uneven"] == "refused"
    assert states(found)["all_to_all float32"] == "right"
    (row,) = (one for one in found.capabilities if one.operation == "all_to_all float32 uneven")
    assert "Only even split sizes are supported" in row.detail
    causes = {command.name: command.cause for command in found.commands}
    assert causes["ranks-2"] == "teardown"
    assert causes["nccom-test allr on 2 ranks"] == "completed"


def test_a_rank_that_hangs_in_a_collective_is_ended_and_fails_what_needs_it(
    told: Misbehave, tmp_path: Path
) -> None:
    told(FAULT="c10d::allreduce=hang", FAULT_RANK="1")
    patience = ("timeouts.train=8", TWO)
    found = carried_out(tmp_path, named(COLLECTIVES, *patience), *patience)
    assert found.outcome is Outcome.FAILED
    assert states(found)["all_reduce float32"] == "hung"
    failed = [check.name for check in found.failed_checks]
    assert "2 ranks: needed operations that hung or crashed" in failed


def test_a_core_without_memory_ends_the_training_with_that_cause(
    told: Misbehave, tmp_path: Path
) -> None:
    told(MEMORY_GB="0.02")
    found = carried_out(tmp_path, named("baseline.eager", ONE), ONE)
    assert found.outcome is Outcome.ERROR
    assert found.problem is not None
    assert found.problem.cause == "out_of_memory"
    assert "nrt_tensor_allocate status=4" in found.problem.what + found.problem.excerpt


@pytest.fixture
def broken(told: Misbehave, tmp_path: Path) -> Finished:
    """The whole pipeline, where the entry point of the device raises."""
    told(FAULT="autoload=raise")
    return pipeline(tmp_path / "reports", "run", "--config", "configs/rehearsal.yaml", "--set", TWO)


def test_a_broken_installation_blocks_every_later_stage_and_tells_the_chained_cause(
    broken: Finished,
) -> None:
    assert broken.status == 1
    stages = [s.id for s in stages_of(plans.load(ROOT / "configs/rehearsal.yaml", settings=[TWO]))]
    outcomes = {}
    for stage in stages:
        verdict = broken.run.read(stage)
        assert verdict is not None
        outcomes[stage] = verdict.outcome
        if verdict.outcome is Outcome.BLOCKED:
            assert verdict.blocked_by == "environment.imports"
    assert outcomes["environment.device"] is Outcome.PASSED
    assert outcomes["environment.imports"] is Outcome.FAILED
    assert {outcomes[stage] for stage in stages[2:]} == {Outcome.BLOCKED}
    cause = "<- ImportError: libnrt.so.1: cannot open shared object file"
    assert cause in broken.stdout
    imports = broken.run.read("environment.imports")
    assert imports is not None
    details = [check.detail for check in imports.failed_checks]
    assert any("autoload_broken" in detail and cause in detail for detail in details)
