from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.baseline_eager import first_rung
from tests.builders import ROOT
from tests.fake_training import Launch, Rig, altered, calm_host, ends, within
from trn_validate import plan as plans
from trn_validate.errors import MeasurementError
from trn_validate.ladder import resolve
from trn_validate.launch import Cause, LaunchResult
from trn_validate.launching import (
    launch,
    log_path,
    request,
    run_spec,
    try_launch,
)
from trn_validate.records import Header, Step
from trn_validate.spec import RunSpec
from trn_validate.stage import Context, Unmeasured
from trn_validate.torchrun import threads

STAGE = "parallelism.fsdp"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    calm_host(monkeypatch)
    return Rig(tmp_path)


def specs(context: Context, *names: str, **changes: Any) -> list[RunSpec]:
    """A launch of the second rung under each of these names."""
    rung = resolve(context.plan.ladders[0])[1]
    private = context.attempt.private
    return [run_spec(context.plan, rung, name, private, **changes) for name in names]


# From a rung to a run spec


def test_a_run_spec_has_the_workload_of_the_ladder_and_the_layout_of_the_rung(rig: Rig) -> None:
    ladder = rig.plan.ladders[0]
    for rung in resolve(ladder):
        spec = run_spec(rig.plan, rung, rung.name, Path("/private"))
        assert spec.degrees == rung.degrees
        assert spec.local_batch_size == rung.local_batch_size
        assert spec.tokens_per_step == rung.tokens_per_step == 1024
        assert (spec.steps, spec.seed) == (ladder.workload.steps, ladder.workload.seed)
        assert spec.model == ladder.model.choice
        assert spec.hooks == ()


def test_every_file_of_a_launch_is_in_its_own_folder(rig: Rig) -> None:
    spec = run_spec(rig.plan, first_rung(rig.plan), "reference", Path("/private/1"))
    folders = {spec.records, spec.dump, spec.stacks}
    assert len(folders) == 3
    assert all(Path(folder).parent == Path("/private/1/reference") for folder in folders)


def test_a_smaller_local_batch_is_made_up_for_by_accumulation(rig: Rig) -> None:
    spec = run_spec(rig.plan, first_rung(rig.plan), "x", Path("/p"), local_batch_size=1)
    assert (spec.accumulation, spec.tokens_per_step) == (4, 1024)


# From a run spec to a request


def test_a_request_is_a_torchrun_of_so_many_ranks_with_a_free_port(rig: Rig) -> None:
    rung = resolve(rig.plan.ladders[0])[2]
    spec = run_spec(rig.plan, rung, "tp", Path("/private/1"))
    asked = request(rig.plan, spec)
    argv = asked.argv
    assert argv[:3] == (sys.executable, "-m", "torch.distributed.run")
    assert argv[argv.index("--nproc-per-node") + 1] == "4"
    assert argv[argv.index("--max-restarts") + 1] == "0"
    assert argv[argv.index("--rdzv-endpoint") + 1] == "localhost:0"
    assert argv[-4:] == ("-m", "trn_validate.workload", "--spec", "/private/1/tp/spec.json")
    assert (asked.ranks, asked.records) == (4, Path("/private/1/tp/records"))


def test_a_request_carries_the_limits_of_the_plan(rig: Rig) -> None:
    asked = request(rig.plan, run_spec(rig.plan, first_rung(rig.plan), "x", Path("/p")))
    limits = rig.plan.timeouts
    assert (asked.wall_seconds, asked.silence_seconds, asked.grace_seconds) == (
        limits.wall,
        limits.silence,
        limits.grace,
    )


def test_a_device_that_loads_by_itself_is_kept_out_of_launches_on_the_cpu(rig: Rig) -> None:
    asked = request(rig.plan, run_spec(rig.plan, first_rung(rig.plan), "x", Path("/p")))
    assert asked.env["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml")
    asked = request(plan, run_spec(plan, first_rung(plan), "x", Path("/p")))
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in asked.env


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"), [(8, 1, 4), (8, 2, 4), (8, 4, 2), (2, 4, 1), (1, 1, 1)]
)
def test_threads_share_the_cores_and_are_at_least_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert threads(ranks) == expected


# Carrying it out


def test_a_launch_finds_its_spec_and_its_records_are_read(rig: Rig) -> None:
    context = rig.context(STAGE)
    spec, other = specs(context, "one", "two")
    one, two = launch(context, [spec, other])
    assert (one.spec, two.spec) == (spec, other)
    assert sorted(one.records.ranks) == [0, 1]
    assert one.checkpoints == Path(spec.dump) / "checkpoint"
    written = (Path(spec.records).parent / "spec.json").read_bytes()
    assert RunSpec.model_validate_json(written) == spec


def test_every_launch_is_on_record_and_the_time_is_that_of_the_longest(rig: Rig) -> None:
    context = rig.context(STAGE)
    launch(context, specs(context, "one", "two"))
    launch(context, specs(context, "three"))
    assert [command.name for command in context.commands] == ["one", "two", "three"]
    assert context.launch_seconds == 1.0


def test_what_is_launched_is_told(rig: Rig) -> None:
    context, told = rig.context(STAGE), list[str]()
    context.say = told.append
    launch(context, specs(context, "one", "two"))
    assert told == ["launching one (dp_shard2), two (dp_shard2)"]


@pytest.mark.parametrize("cause", [cause for cause in Cause if not cause.usable])
def test_a_launch_that_is_not_usable_leaves_nothing_to_judge(rig: Rig, cause: Cause) -> None:
    rig.spoil(within("two", ends(cause, "rank 1 fell over", after=4)))
    context = rig.context(STAGE)
    with pytest.raises(Unmeasured) as caught:
        launch(context, specs(context, "one", "two"))
    problem = caught.value.problem
    assert (problem.cause, problem.what) == (cause.value, "two: rank 1 fell over")
    assert (problem.rank, problem.step) == (0, 4)
    assert problem.log == f"{STAGE}/1/two/output.log"
    assert caught.value.checks == ()
    assert [command.cause for command in context.commands] == ["completed", cause.value]


def test_a_cause_explains_itself_where_the_launch_says_nothing(rig: Rig) -> None:
    rig.spoil(ends(Cause.HANG, ""))
    context = rig.context(STAGE)
    with pytest.raises(Unmeasured) as caught:
        launch(context, specs(context, "one"))
    assert caught.value.problem.what == f"one: {Cause.HANG.phrase}"


def test_a_number_that_is_not_finite_is_the_finding_of_a_launch_that_then_crashed(
    rig: Rig,
) -> None:
    rig.spoil(altered(Step, rank=1, step=3, loss=math.inf), ends(Cause.CRASH, after=3))
    context = rig.context(STAGE)
    with pytest.raises(Unmeasured) as caught:
        launch(context, specs(context, "one"))
    (check,) = caught.value.checks
    assert not check.passed
    assert check.detail == "loss of rank 1 at step 3"
    assert caught.value.problem.step == 3


def test_a_launch_may_be_tried_whose_end_is_the_question(rig: Rig) -> None:
    rig.spoil(ends(Cause.CRASH))
    context = rig.context(STAGE)
    (trial,) = try_launch(context, specs(context, "one"))
    assert trial.result.cause is Cause.CRASH
    assert [rank.taken for rank in trial.records.ranks.values()] == [2, 2]


def torn(told: Launch) -> None:
    told.lines[1][1] = told.lines[1][1].model_copy(update={"kind": "nothing"})


def test_a_record_that_is_none_is_a_failure_of_the_launch(rig: Rig) -> None:
    rig.spoil(torn)
    context = rig.context(STAGE)
    with pytest.raises(MeasurementError, match="one wrote not a record") as caught:
        launch(context, specs(context, "one"))
    assert caught.value.where.endswith("rank-1.jsonl:2")


def test_a_launch_that_crashed_is_told_by_its_crash_though_its_records_are_torn(rig: Rig) -> None:
    rig.spoil(ends(Cause.CRASH, "the exit status is 0, but rank 1 wrote not a record"), torn)
    context = rig.context(STAGE)
    with pytest.raises(Unmeasured, match="the exit status is 0"):
        launch(context, specs(context, "one"))


def test_a_log_outside_the_attempt_is_not_named(rig: Rig) -> None:
    context = rig.context(STAGE)

    def result(log: Path | None) -> LaunchResult:
        return LaunchResult(
            name="x", argv=(), cause=Cause.CRASH, exit_status=1, seconds=0.0, log=log
        )

    assert log_path(context, result(None)) == ""
    assert log_path(context, result(Path("/var/log/messages"))) == ""
    inside = context.attempt.private / "x/ranks/0/stderr.log"
    assert log_path(context, result(inside)) == f"{STAGE}/1/x/ranks/0/stderr.log"


def test_a_hook_that_one_rank_reports_is_on_record(rig: Rig) -> None:
    context = rig.context(STAGE)
    rig.spoil(altered(Header, rank=1, hooks=("tests.defects.training:hanging",)))
    launch(context, specs(context, "one"))
    assert context.hooks == {"tests.defects.training:hanging"}


def test_the_hooks_of_any_launch_are_in_the_verdict(rig: Rig) -> None:
    rig.walk()
    assert rig.rerun(STAGE, altered(Header, rank=1, hooks=("a:b",))).hooks == ("a:b",)
    assert rig.verdict("baseline.eager").hooks == ()
