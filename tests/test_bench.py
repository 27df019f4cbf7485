from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.again import Again
from scripts.bench import (
    CommandCost,
    chosen,
    main,
    measure_absent,
    measure_status,
    render,
    speeds,
)
from scripts.costs import StageCost, cost, newest_finished
from scripts.synthetic import Judged
from stages import stages_of
from tests.builders import header as build_header
from tests.builders import load_plan, step, verdict
from trn_validate.config import Plan
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.records import Closing, Step, rank_file
from trn_validate.run import Run
from trn_validate.session import plan_text
from trn_validate.store import Store
from trn_validate.target import HOST_ROOT
from trn_validate.verdict import Command, Verdict


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return load_plan(tmp_path)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return tmp_path / "reports"


def start(reports: Path, plan: Plan) -> Run:
    return Store(reports).create(plan.target, plan.path, plan_text(plan))


def finish(run: Run, plan: Plan, *, leave_out: str = "") -> Run:
    """Write a passed verdict of every stage but one."""
    for stage in stages_of(plan):
        if stage.id != leave_out:
            answer(run, stage.id)
    return run


def answer(run: Run, stage: str, **changes: object) -> Verdict:
    attempt = run.new_attempt(stage)
    values = {"stage": stage, "run": run.name, "attempt": attempt.number, "artifacts": ()}
    run.write(written := verdict(**(values | changes)), attempt)
    return written


def command(name: str, seconds: float) -> Command:
    return Command(name=name, argv=("true",), exit_status=0, seconds=seconds, cause="completed")


def record(folder: Path, rank: int, steps: list[Step], seconds: Mapping[str, float]) -> None:
    lines = [
        build_header(rank=rank),
        *steps,
        Closing(rank=rank, steps=len(steps), seconds=dict(seconds)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line.model_dump_json()}\n" for line in lines)
    rank_file(folder, rank).write_text(text, encoding="utf-8")


def timed(number: int, total: float, probe: float) -> Step:
    return step(number, seconds={"total": total, "probe": probe})


@pytest.fixture
def measured(reports: Path, plan: Plan) -> tuple[Run, Verdict]:
    """A stage of 20 s with two launches, one after the other; the first has two ranks."""
    run = start(reports, plan)
    found = answer(
        run,
        "parallelism.next",
        seconds=20.0,
        launch_seconds=18.0,
        commands=(command("two", 12.0), command("one", 6.0)),
    )
    folder = run.folder / "parallelism.next" / "1"
    first, second = timed(1, 2.0, 0.1), timed(2, 1.0, 0.1)
    record(folder / "two/records", 0, [first, second], {"import": 3, "build": 1, "train": 4})
    record(folder / "two/records", 1, [first, second], {"import": 5, "build": 1, "train": 3})
    record(folder / "one/records", 0, [first], {"import": 2, "build": 0.5, "train": 2})
    return run, found


def test_the_own_share_is_what_no_launch_was_alive_for(measured: tuple[Run, Verdict]) -> None:
    assert cost(*measured).own == 2.0


def test_the_slowest_rank_of_each_launch_counts(measured: tuple[Run, Verdict]) -> None:
    found = cost(*measured)
    assert found.phases == (5 + 2, 1 + 0.5, 4 + 2)
    assert found.other == 18 - (7 + 1.5 + 6)


def test_the_probe_is_held_against_the_steps_of_all_ranks(measured: tuple[Run, Verdict]) -> None:
    found = cost(*measured)
    assert found.steps == 5
    assert found.probe == pytest.approx(0.5)
    assert found.stepping == pytest.approx(8.0)
    assert (found.captures, found.capturing) == (0, 0.0)


def test_a_launch_that_left_no_record_counts_as_other(reports: Path, plan: Plan) -> None:
    run = start(reports, plan)
    found = cost(run, answer(run, "environment.imports", commands=(command("import-torch", 3.0),)))
    assert (found.phases, found.other, found.steps) == ((0, 0, 0), 3.0, 0)


def test_what_ranks_leave_that_do_not_train_is_not_read(reports: Path, plan: Plan) -> None:
    run = start(reports, plan)
    found = answer(run, "environment.collectives", commands=(command("ranks-2", 3.0),))
    folder = run.folder / "environment.collectives/1/ranks-2/records"
    folder.mkdir(parents=True)
    rank_file(folder, 0).write_text('{"kind": "probe"}\n', encoding="utf-8")
    assert (cost(run, found).other, cost(run, found).steps) == (3.0, 0)


def test_a_record_that_was_altered_is_an_evidence_error(measured: tuple[Run, Verdict]) -> None:
    run, found = measured
    path = run.folder / "parallelism.next/1/one/records/rank-0.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match="not a record"):
        cost(run, found)


def test_a_newer_run_that_is_not_finished_is_passed_over(reports: Path, plan: Plan) -> None:
    finished = finish(start(reports, plan), plan)
    newer = finish(start(reports, plan), plan, leave_out="parallelism.next")
    assert newer.order > finished.order
    run, verdicts = newest_finished(reports)
    assert run.name == finished.name
    assert [v.stage for v in verdicts] == [stage.id for stage in stages_of(plan)]


@pytest.mark.parametrize("change", [{"blocked_by": "baseline.eager"}, {"unmeasured": True}])
def test_a_run_with_a_stage_that_did_not_measure_is_not_finished(
    reports: Path, plan: Plan, change: dict[str, object]
) -> None:
    run = finish(start(reports, plan), plan, leave_out="parallelism.next")
    answer(run, "parallelism.next", **change)
    with pytest.raises(UsageError, match="no finished run"):
        newest_finished(reports)


def test_a_run_whose_plan_is_another_versions_is_passed_over(reports: Path, plan: Plan) -> None:
    run = finish(start(reports, plan), plan)
    (run.folder / "plan.yaml").write_text("target: cpu\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no finished run"):
        newest_finished(reports)


def test_status_is_started_as_often_as_asked(reports: Path, plan: Plan) -> None:
    finish(start(reports, plan), plan)
    found = measure_status(reports, 2)
    assert len(found.seconds) == 2
    assert min(found.seconds) > 0
    assert found.peak_bytes > 2**20


def test_a_status_that_refuses_is_told(reports: Path) -> None:
    with pytest.raises(UsageError, match="there is no run"):
        measure_status(reports, 1)


def test_a_trn2_plan_is_started_where_no_trn2_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_ROOT, str(tmp_path))
    found = measure_absent(1)
    assert len(found.seconds) == 1
    assert found.peak_bytes > 2**20


def test_a_plan_that_does_not_say_that_its_device_is_absent_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scripts.bench._ABSENT", "configs/nothing.yaml")
    with pytest.raises(UsageError, match=r"run gives no answer .*nothing\.yaml"):
        measure_absent(1)


def test_the_answer_holds_every_stage_their_sum_and_both_shares() -> None:
    one = StageCost(
        stage="baseline.eager",
        wall=10.0,
        own=1.0,
        phases=(2.0, 1.0, 5.0),
        other=1.0,
        probe=0.25,
        stepping=5.0,
        steps=6,
        captures=3,
        capturing=0.75,
        compiling=4.5,
    )
    status = CommandCost((0.5, 0.7, 0.6), 40 * 2**20)
    judged = Judged(ranks=64, steps=100, seconds=0.25, peak_bytes=33 * 2**20, record_bytes=1)
    again = Again("parallelism.fsdp", first=20.0, seconds=20.5, peak_bytes=90 * 2**20)
    text = render("cpu.native.20250101T000000Z", [one, one], status, [judged], again, status)
    lines = text.splitlines()
    assert lines[0] == "run cpu.native.20250101T000000Z: 2 stages"
    numbers = {line.split()[0]: line.split()[1:] for line in lines[2:6]}
    assert numbers["seconds"] == ["wall", "own", "import", "build", "train", "other"]
    assert numbers["total"] == ["20.0", "2.0", "4.0", "2.0", "10.0", "2.0"]
    assert "10.00 %   2.0 s of 20.0 s" in text
    assert "5.00 %   0.500 s of 10.0 s, 12 steps of all ranks" in text
    assert "0.60 s   median of 3, 0.50 s to 0.70 s" in text
    assert "40 MiB" in text
    assert "0.250 s   1.5 s of all ranks, 6 captures" in text
    assert "9.0 s   part of train" in text
    assert "parallelism.fsdp again              1.025   20.5 s for the command, 20.0 s in" in text
    assert "90 MiB   its own process" in text
    assert "a Trn2 plan without a Trn2         0.60 s   median of 3, 0.50 s to 0.70 s" in text
    assert "judging 64 ranks x 100 steps       0.25 s   peak memory 33 MiB" in text


def test_the_first_rung_is_run_again_unless_another_stage_is_named(
    reports: Path, plan: Plan
) -> None:
    run = finish(start(reports, plan), plan)
    verdicts = newest_finished(reports)[1]
    first = next(v for v in verdicts if v.stage.startswith("parallelism."))
    assert chosen(verdicts, None) is first
    assert chosen(verdicts, "baseline.eager") == run.read("baseline.eager")
    assert chosen(verdicts, "none") is None
    with pytest.raises(UsageError, match=r"no such stage.*One of: .*baseline\.eager"):
        chosen(verdicts, "baseline.lazy")


def test_without_a_finished_run_it_exits_2_with_one_message(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--reports", str(reports)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "make validate" in printed.err


def test_a_verdict_that_cannot_be_read_exits_5(
    reports: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finish(start(reports, plan), plan)
    run.verdict_path("baseline.eager").write_text("{", encoding="utf-8")
    assert main(["--reports", str(reports)]) == 5
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_finished_run_is_shown(
    reports: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finish(start(reports, plan), plan)
    assert main(["--reports", str(reports), "--repeat", "1", "--again", "none"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"run {run.name}: {len(stages_of(plan))} stages\n")
    assert printed.err == ""


def test_the_speed_of_kernels_is_told_of_each_run_that_has_them() -> None:
    facts = {
        "kernels: speed": "slower: 1.2 to 1.3 times the step without, 5 pairs",
        "kernels-compiled: speed": "no difference that can be told from the spread: 5 pairs",
        "replaced": "trainer",
    }
    lines = speeds(verdict(facts=facts))
    assert [line.partition(":")[0] for line in lines] == [
        "kernels-compiled, step with kernels",
        "kernels, step with kernels",
    ]
    assert lines[1].endswith("5 pairs")
