"""The rules by which launches on a neuron device are made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import CONFIGS, ROOT, run_spec
from tests.fake_training import NO_SIGNS, Defect, Rig, calm_host, ends, within
from tests.neuron.machine import Machine
from tests.neuron.test_watch import counts
from trn_validate import launch_neuron
from trn_validate import plan as plans
from trn_validate.config import Plan
from trn_validate.ladder import ResolvedRung, resolve
from trn_validate.launch import Cause, LaunchRequest
from trn_validate.launch_neuron import (
    CACHE,
    CACHES,
    EFA,
    FEW,
    UNSET,
    environment,
    equipped,
    warm_spec,
)
from trn_validate.launching import launch
from trn_validate.launching import run_spec as spec_of
from trn_validate.operation import OPERATIONS
from trn_validate.spec import CompileChoice, Degrees, RunSpec
from trn_validate.stage import Context

BIG = plans.load(ROOT / "configs/trn2.48xlarge.yaml")


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(launch_neuron, "available_gib", lambda: 4096.0)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A run of a small instance that came to its last stage."""
    folder = tmp_path_factory.mktemp("whole")
    machine = Machine(folder / "host", kind="trn2.3xlarge").build()
    # As many layers as the imagined ranks have.
    layers = "paths.native.ladders.small.model.layers=2"
    plan = plans.load(ROOT / "configs/trn2.3xlarge.yaml", settings=[layers])
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        patch.setattr(launch_neuron, "available_gib", lambda: 4096.0)
        made = Rig(folder, counts(machine), plan=plan, choice=machine.install())
        made.walk()  # up to kernels.nki, whose imagined kernels run on no device
        yield made


def rung(name: str, plan: Plan = BIG) -> ResolvedRung:
    return next(r for ladder in plan.ladders for r in resolve(ladder) if r.name == name)


def rig(tmp_path: Path, *defects: Defect) -> tuple[Rig, Context]:
    made = Rig(tmp_path, *defects, plan=BIG, choice=NO_SIGNS)
    return made, made.context("parallelism.pp")


def launched(tmp_path: Path, name: str, *defects: Defect) -> list[LaunchRequest]:
    made, context = rig(tmp_path, *defects)
    launch(context, [spec_of(BIG, rung(name), name, context.attempt.private)])
    return made.launcher.requests


# Caches


def test_every_cache_is_in_the_run_s_private_folder_and_set_before_a_rank_starts(
    tmp_path: Path,
) -> None:
    made, context = rig(tmp_path)
    launch(context, [spec_of(BIG, rung("fsdp"), "fsdp", context.attempt.private)])
    (asked,) = made.launcher.requests
    assert len(CACHES) == 5
    for variable, folder in CACHES.items():
        assert asked.env[variable] == str(made.run.private / CACHE / folder)
        assert Path(asked.env[variable]).is_dir()


def test_two_runs_share_no_cache_and_two_stages_of_one_do(tmp_path: Path) -> None:
    one, other = (environment(tmp_path / name, 1) for name in ("one", "other"))
    assert not set(one.values()) & set(other.values())
    assert environment(tmp_path / "one", 1) == one


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("trn_validate.workload.collectives", 2),
        ("trn_validate.workload.ops", len(OPERATIONS)),
        ("trn_validate.workload", 10),
        ("trn_validate.kernels.opcheck", 3),
    ],
)
def test_whatever_computes_on_the_device_is_launched_by_the_same_rules(
    whole_run: Rig, module: str, least: int
) -> None:
    asked = [r for r in whole_run.launcher.requests if module in r.argv]
    # The seed is made on the host, and leaves the device alone.
    on_device = [r for r in asked if r.env.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0"]
    assert len(on_device) >= least
    for request in on_device:
        assert CACHES.keys() <= request.env.keys(), request.name
        assert not set(UNSET) & set(request.env), request.name


def test_what_a_launch_asks_for_itself_is_kept(tmp_path: Path) -> None:
    asked = LaunchRequest(
        name="x",
        argv=("x",),
        folder=tmp_path,
        env={"OMP_NUM_THREADS": "1", "NKI_TRACE_CACHE_URL": "own"},
        wall_seconds=1.0,
        silence_seconds=1.0,
        grace_seconds=1.0,
    )
    given = equipped("neuron", tmp_path, 1, asked)
    assert given.env["NKI_TRACE_CACHE_URL"] == "own"
    assert given.env["OMP_NUM_THREADS"] == "1"
    assert CACHES.keys() <= given.env.keys()
    assert equipped("cpu", tmp_path, 1, asked) == asked


def test_a_launch_over_several_nodes_talks_through_the_fabric_and_another_does_not(
    tmp_path: Path,
) -> None:
    asked = LaunchRequest(
        name="x", argv=("true",), folder=tmp_path, wall_seconds=1.0, silence_seconds=1.0
    )
    assert not EFA.keys() & equipped("neuron", tmp_path, 1, asked).env.keys()
    over = replace(asked, nodes=2)
    assert EFA.items() <= equipped("neuron", tmp_path, 1, over).env.items()
    assert equipped("cpu", tmp_path, 1, over) == over


def test_on_the_cpu_no_cache_of_a_device_is_named(tmp_path: Path) -> None:
    made = Rig(tmp_path)
    context = made.context("baseline.eager")
    first = resolve(made.plan.ladders[0])[0]
    launch(context, [spec_of(made.plan, first, "x", context.attempt.private)])
    assert not set(CACHES) & set(made.launcher.requests[0].env)
    assert not (made.run.private / CACHE).exists()


# LOCAL_RANK to core


def test_no_launch_says_which_cores_are_seen_so_that_each_rank_gets_its_own(
    tmp_path: Path,
) -> None:
    for asked in launched(tmp_path, "pp"):
        assert not set(UNSET) & set(asked.env)
    assert set(UNSET) == {"NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"}


# Few before many


def test_a_launch_of_many_ranks_is_preceded_by_one_of_few(tmp_path: Path) -> None:
    warm, full = launched(tmp_path, "8b_tp4_fsdp16")
    assert (warm.name, full.name) == ("8b_tp4_fsdp16-warm", "8b_tp4_fsdp16")
    assert (warm.ranks, full.ranks) == (8, 64)
    assert {name: warm.env[name] for name in CACHES} == {name: full.env[name] for name in CACHES}


@pytest.mark.parametrize(
    ("name", "few"),
    [
        ("tp", {"dp_shard": 2, "tp": 4}),
        ("cp", {"tp": 4, "cp": 2}),
        ("pp", {"tp": 4, "cp": 2, "pp": 2}),
    ],
)
def test_parameters_are_still_sharded_on_few_ranks(
    tmp_path: Path, name: str, few: dict[str, int]
) -> None:
    warm = warm_spec(spec_of(BIG, rung(name), name, tmp_path))
    assert warm is not None
    assert warm.degrees == Degrees(**few)
    assert warm.degrees.dp_shard * warm.degrees.cp == 2


@pytest.mark.parametrize("name", ["baseline", "fsdp"])
def test_few_ranks_need_none_before_them(tmp_path: Path, name: str) -> None:
    (asked,) = launched(tmp_path, name)
    assert asked.ranks <= FEW


def test_what_was_warmed_once_in_a_run_is_not_warmed_again(tmp_path: Path) -> None:
    made, context = rig(tmp_path)
    for name in ("reference", "rerun"):
        launch(context, [spec_of(BIG, rung("8b_fsdp16"), name, context.attempt.private)])
    assert [asked.name for asked in made.launcher.requests] == [
        *("reference-warm", "reference", "rerun"),
    ]


def test_a_compiled_launch_is_warmed_for_itself(tmp_path: Path) -> None:
    made, context = rig(tmp_path)
    eager = spec_of(BIG, rung("8b_fsdp16"), "eager", context.attempt.private)
    backend = CompileChoice(backend="neuron")
    compiled = spec_of(BIG, rung("8b_fsdp16"), "compiled", context.attempt.private)
    launch(context, [eager])
    launch(context, [compiled.model_copy(update={"compiled": backend})])
    names = [asked.name for asked in made.launcher.requests]
    assert names == ["eager-warm", "eager", "compiled-warm", "compiled"]


def test_a_warm_up_that_fails_is_on_record_and_decides_nothing(tmp_path: Path) -> None:
    _, context = rig(tmp_path, within("reference-warm", ends(Cause.OUT_OF_MEMORY)))
    for name in ("reference", "rerun"):
        spec = spec_of(BIG, rung("8b_fsdp16"), name, context.attempt.private)
        (trial,) = launch(context, [spec])
        assert trial.result.cause is Cause.COMPLETED
    # What failed has not filled the cache, so the next launch tries again.
    assert [c.name for c in context.commands] == [
        *("reference-warm", "reference", "rerun-warm", "rerun"),
    ]
    assert context.commands[0].cause == "out_of_memory"


def neuron_spec(**changes: Any) -> RunSpec:
    values = {
        "device": "neuron",
        "records": "/private/1/tp/records",
        "dump": "/private/1/tp/dump",
        "name": "tp",
        "degrees": Degrees(dp_replicate=2, dp_shard=8, tp=4),
        "local_batch_size": 1,
        "global_batch_size": 32,
        "capture": "full",
        "count_communication": True,
        "perturb": 3,
    }
    return run_spec(**(values | changes))


def test_few_ranks_have_the_shapes_of_many() -> None:
    spec = neuron_spec()
    warm = warm_spec(spec)
    assert warm is not None
    assert warm.degrees == Degrees(dp_shard=2, tp=4)
    assert warm.degrees.world_size == FEW
    for same in ("seq_len", "local_batch_size", "accumulation", "attention", "compute_dtype"):
        assert getattr(warm, same) == getattr(spec, same)
    assert warm.global_batch_size == 4
    assert warm.model.layers == 2
    assert (warm.capture, warm.count_communication, warm.perturb) == ("none", False, 0)
    assert not warm.checkpoint.load_path
    assert warm.records == "/private/1/tp-warm/records"
    assert warm.dump == "/private/1/tp-warm/dump"


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cpu"},
        {"degrees": Degrees(dp_shard=8)},
        {"degrees": Degrees(dp_shard=16, ep=4)},
        {"degrees": Degrees(dp_shard=2, tp=16)},
    ],
)
def test_where_nothing_can_be_taken_away_there_is_no_warm_up(changes: dict[str, Any]) -> None:
    assert warm_spec(neuron_spec(**changes)) is None


def test_every_pipeline_stage_keeps_layers() -> None:
    warm = warm_spec(neuron_spec(degrees=Degrees(dp_shard=8, pp=4)))
    assert warm is not None
    assert warm.model.layers == 8


# Compilers bounded by memory


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A neuronx-cc on the path, that says what it was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "neuronx-cc"
    file.write_text('#!/bin/sh\necho "compiled $1 of $#"\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    yield file


def test_with_memory_for_every_rank_the_compiler_is_the_vendor_s(
    tmp_path: Path, real: Path
) -> None:
    assert "PATH" not in environment(tmp_path / "private", 64)


def test_with_less_the_ranks_find_one_that_waits_for_a_slot(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 64 ranks of 7 GiB leave 152 GiB, which are 4 compilers of 32.
    monkeypatch.setattr(launch_neuron, "available_gib", lambda: 600.0)
    path = environment(tmp_path / "private", 64)["PATH"]
    first, _, rest = path.partition(os.pathsep)
    assert Path(first) == tmp_path / "private" / CACHE / "slots-4"
    assert rest == os.environ["PATH"]
    done = subprocess.run(
        ["neuronx-cc", "a b", "c"],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "compiled a b of 2\n"
    assert sorted(p.name[:5] for p in Path(first).iterdir()) == ["neuro", "slot-"]


def test_with_memory_for_none_one_compiles_at_a_time(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_neuron, "available_gib", lambda: 1.0)
    path = environment(tmp_path / "private", 4)["PATH"]
    assert path.startswith(str(tmp_path / "private" / CACHE / "slots-1"))


def test_without_a_compiler_nothing_stands_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_neuron, "available_gib", lambda: 1.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "PATH" not in environment(tmp_path / "private", 64)


# Limits


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_limits_of_a_plan_leave_a_first_step_the_time_to_compile(path: Path) -> None:
    plan = plans.load(path)
    limits = plan.timeouts
    # While one rank compiles the others wait in a collective, and nothing is written.
    assert limits.init <= limits.silence <= limits.wall
    # What a rehearsal computes on has nothing to compile.
    if plan.profile.device == "neuron" and plan.target != "rehearsal":
        assert limits.init >= 1800
        assert limits.train >= 600
        assert limits.wall >= 2 * limits.init
