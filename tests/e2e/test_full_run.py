"""What a user gets from the one command, read from a real run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stages import stages_of
from tests.e2e.conftest import Finished, pipeline
from trn_validate.collectives import needed
from trn_validate.evidence import evidence
from trn_validate.plan import load
from trn_validate.spec import Degrees
from trn_validate.verdict import Outcome, Verdict

pytestmark = pytest.mark.e2e

PLAN = load(Path("configs/cpu.yaml"))
STAGES = [stage.id for stage in stages_of(PLAN)]
TRAINED = [stage for stage in STAGES if not stage.startswith("environment.")]


def verdicts(finished: Finished) -> dict[str, Verdict]:
    found = {stage: finished.run.read(stage) for stage in STAGES}
    return {stage: verdict for stage, verdict in found.items() if verdict is not None}


def test_every_stage_of_the_plan_passes_with_every_check_it_owes(full_run: Finished) -> None:
    found = verdicts(full_run)
    assert list(found) == STAGES
    for verdict in found.values():
        assert verdict.outcome is Outcome.PASSED
        assert verdict.expects
        assert not verdict.missing


def test_a_run_on_the_cpu_says_rehearsal_first_and_last(full_run: Finished) -> None:
    assert full_run.stderr.startswith("REHEARSAL on the CPU")
    assert full_run.stdout.splitlines()[-1].startswith(
        f"REHEARSAL: all {len(STAGES)} stages passed"
    )
    report = (full_run.run.folder / "report.md").read_text(encoding="utf-8")
    assert "REHEARSAL" in report.splitlines()[0]
    real, reason = evidence(verdicts(full_run))
    assert not real
    assert reason == "the target is cpu"


def test_stdout_says_where_the_verdicts_are(full_run: Finished) -> None:
    assert f"{full_run.run.name}/<stage>.json" in full_run.stdout


def test_a_comparison_names_two_different_things(full_run: Finished) -> None:
    for stage in TRAINED:
        pairs = verdicts(full_run)[stage].compared
        assert pairs
        for pair in pairs:
            assert not set(pair.reference.processes) & set(pair.candidate.processes)
    pair = verdicts(full_run)["parallelism.tp"].compared[0]
    assert pair.reference.attempt.startswith("baseline.eager/")
    assert len(pair.candidate.processes) == 4


def test_tokens_per_step_are_the_same_in_every_layout(full_run: Finished) -> None:
    layouts = {s: v.layout for s, v in verdicts(full_run).items() if v.layout is not None}
    assert list(layouts) == TRAINED
    assert {layout.tokens_per_step for layout in layouts.values()} == {1024}
    assert layouts["parallelism.tp"].degrees == Degrees(dp_shard=2, tp=2)
    assert layouts["parallelism.pp"].degrees == Degrees(pp=2)
    assert layouts["kernels.compile"].processes == 4


def test_gradients_and_parameters_of_every_rung_are_within_limits_that_a_control_gave(
    full_run: Finished,
) -> None:
    control = verdicts(full_run)["baseline.eager"].measures["control_gradient_relative"]
    assert control > 0.0
    for stage in TRAINED[2:]:
        checks = verdicts(full_run)[stage].checks
        judged = [
            check
            for check in checks
            if check.name.endswith("gradient of step 1")
            # The mixture of experts has a control of its own.
            and not check.name.startswith(("control", "experts"))
        ]
        assert judged
        for check in judged:
            assert check.basis is not None
            assert check.basis.control == control
            assert 0.0 < float(check.measured) <= float(check.limit) < 0.25


def test_communication_is_that_of_the_layout(full_run: Finished) -> None:
    def kinds(stage: str) -> set[str]:
        names = verdicts(full_run)[stage].measures
        return {n.partition(".")[2] for n in names if n.startswith("communication_calls.")}

    assert kinds("baseline.eager") == set()
    assert kinds("parallelism.ddp") == {"all_reduce"}
    assert kinds("parallelism.fsdp") >= {"all_gather", "reduce_scatter"}
    assert kinds("parallelism.pp") >= {"send", "recv"}


def test_every_collective_has_an_answer_at_every_number_of_processes(full_run: Finished) -> None:
    found = verdicts(full_run)["environment.collectives"].capabilities
    states = {(one.processes, one.operation): one.state for one in found}
    assert {world for world, _ in states} == {2, 4}
    for world in (2, 4):
        right = {name for (w, name), state in states.items() if (w, state) == (world, "right")}
        assert right >= needed(PLAN, world)
        # gloo moves whole tensors alone in this form, and says so.
        assert states[world, "all_to_all_list float32 uneven"] == "refused"
    assert states[4, "reduce_scatter float32 in groups of 2, 2 apart"] == "right"
    assert "unasked" not in states.values()


def test_compiled_blocks_ran_compiled_and_once(full_run: Finished) -> None:
    verdict = verdicts(full_run)["kernels.compile"]
    assert {c.name for c in verdict.checks} >= {
        "compiled-baseline: compilations after step 1",
        "compiled-tp: regions that ran eagerly",
    }
    assert verdict.measures["compiled-tp.compile_seconds"] > 0
    assert verdict.measures["compiled-tp.compiled_graphs"] >= 1


def test_kernels_were_launched_on_every_rank_and_moved_nothing_beyond_the_limits(
    full_run: Finished,
) -> None:
    verdict = verdicts(full_run)["kernels.nki"]
    found = {check.name: check for check in verdict.checks}
    for launch, ranks in (("kernels", 4), ("kernels-compiled", 4), ("experts", 1)):
        assert found[f"{launch}: provider of kernels"].measured != "none"
        for what in ("modules without their kernel", "launches of kernels"):
            assert found[f"{launch}: {what}"].detail == f"{ranks} ranks"
        assert 0.0 < float(found[f"{launch}: gradient of step 1"].measured) < 1e-4
    assert len([name for name in found if name.startswith("expert_mlp ")]) > 60
    assert verdict.measures["kernels.with_over_without"] > 0


def test_the_files_of_the_checkpoint_are_listed_with_their_hashes(full_run: Finished) -> None:
    relative = "baseline.checkpoint/1/save/checkpoint-files.json"
    listed = json.loads((full_run.run.folder / relative).read_text(encoding="utf-8"))
    assert sorted(listed["step-3"]) == [".metadata", "__0_0.distcp"]
    assert all(len(file["sha256"]) == 64 for file in listed["step-3"].values())
    named = {artifact.path for artifact in verdicts(full_run)["baseline.checkpoint"].artifacts}
    assert relative in named


def test_losses_are_kept_at_full_precision(full_run: Finished) -> None:
    losses = verdicts(full_run)["baseline.eager"].series["loss"]
    assert len(losses) == 6
    assert all(math.isfinite(loss) for loss in losses)
    # A float32 printed to five decimals would be a multiple of 1e-5.
    assert any(abs(loss * 1e5 - round(loss * 1e5)) > 1e-3 for loss in losses)


def test_nothing_published_names_this_machine(full_run: Finished) -> None:
    folder = full_run.run.folder
    texts = [p for p in folder.rglob("*") if p.suffix in (".json", ".jsonl", ".log", ".txt", ".md")]
    assert len(texts) > 30
    for path in texts:
        assert str(full_run.reports) not in path.read_text(encoding="utf-8", errors="replace")


def test_running_again_keeps_every_verdict(full_run: Finished) -> None:
    before = {s: full_run.run.verdict_path(s).read_bytes() for s in STAGES}
    again = pipeline(full_run.reports, "run", "--config", "configs/cpu.yaml", "--json")
    assert again.status == 0, again.stderr
    answer = json.loads(again.stdout)
    assert [row["state"] for row in answer["stages"]] == ["fresh"] * len(STAGES)
    assert {s: full_run.run.verdict_path(s).read_bytes() for s in STAGES} == before


def test_status_agrees_with_the_run(full_run: Finished) -> None:
    status = pipeline(full_run.reports, "status")
    assert status.status == 0, status.stdout + status.stderr
    assert status.stdout.count("passed") >= len(STAGES)


def test_plan_keeps_what_is_fresh_and_shows_each_command(full_run: Finished) -> None:
    plan = pipeline(full_run.reports, "plan", "--config", "configs/cpu.yaml")
    assert plan.status == 0
    lines = plan.stdout.splitlines()
    assert sum(line.startswith("keep ") for line in lines) == len(STAGES)
    # 2 of the collectives, 5 of the baseline, 5 of the checkpoint, 6 rungs, 2 compiled, 5 with
    # kernels.
    assert sum("torch.distributed.run" in line for line in lines) == 25


def test_an_edited_verdict_is_never_read_as_a_pass(copied_run: Path) -> None:
    (path,) = copied_run.glob("cpu.*/parallelism.tp.json")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"measured": 1024', '"measured": 512', 1), encoding="utf-8")
    status = pipeline(copied_run, "status")
    assert status.status == 5
    assert "parallelism.tp.json" in status.stderr


def test_a_changed_seed_makes_what_rests_on_it_stale(copied_run: Path) -> None:
    (path,) = copied_run.glob("cpu.*/baseline.eager/1/seed/__0_0.distcp")
    data = bytearray(path.read_bytes())
    path.unlink()
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    status = pipeline(copied_run, "status")
    assert status.status == 5
    assert "artifact baseline.eager/1/seed/__0_0.distcp" in status.stdout
