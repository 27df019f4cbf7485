"""What ``plan --check`` does: would the rungs that cross nodes hold on more of them?

Each is widened along the axis on which it crosses, so that a node keeps its share of the ranks
and a rank its share of the batch. The plan's own rules judge it here; torchtitan builds config,
mesh and model of every size in one other process, since this one never loads torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trn_validate.config import Plan
from trn_validate.errors import MeasurementError, UsageError
from trn_validate.gate import FAILED, PASSED
from trn_validate.ladder import ResolvedRung, problems, resolve
from trn_validate.launch import Launcher, LaunchRequest
from trn_validate.launch_local import LocalLauncher
from trn_validate.launching import run_spec
from trn_validate.session import choose_plan
from trn_validate.spec import CheckpointChoice, RunSpec

NODES = (2, 4, 8, 16, 32, 64)
STATE_BYTES = 16
"""Of a parameter in float32 under torch.optim.AdamW: itself, its gradient and two moments."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rung on so many nodes."""

    plan: Plan
    rung: ResolvedRung

    @property
    def spec(self) -> RunSpec:
        """Its launch, on the CPU: where the fork's module is missing, upstream's answers for it."""
        seed = CheckpointChoice(create_seed=True)
        folder = Path("/nowhere")
        spec = run_spec(self.plan, self.rung, self.rung.name, folder, checkpoint=seed)
        return spec.model_copy(update={"device": "cpu"})


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came of one case."""

    rung: str
    nodes: int
    degrees: str
    ranks: int
    gib_per_rank: float | None
    """Parameters, gradients and optimizer state of one rank."""
    problems: tuple[str, ...]


def cases(plan: Plan, nodes: Sequence[int] = NODES) -> Iterator[Case]:
    """The plan's rungs that cross, at every number of nodes that is at least its own."""
    own = max(plan.nodes, NODES[0])
    for rung in (rung for ladder in plan.ladders for rung in resolve(ladder)):
        if rung.crosses is None:
            continue
        for count in (count for count in nodes if count >= own):
            yield _widened(plan, rung, count, count // own)


def _widened(plan: Plan, rung: ResolvedRung, nodes: int, times: int) -> Case:
    axis = rung.crosses or ""
    degrees = rung.degrees.model_copy(update={axis: getattr(rung.degrees, axis) * times})
    workload = rung.ladder.workload
    batch = workload.global_batch_size * times
    ladder = rung.ladder.model_copy(
        update={"workload": workload.model_copy(update={"global_batch_size": batch})}
    )
    wider = plan.model_copy(update={"nodes": nodes})
    return Case(plan=wider, rung=replace(rung, ladder=ladder, degrees=degrees))


def ask(
    every: Sequence[Case], folder: Path, launcher: Launcher, *, seconds: float = 900.0
) -> list[dict[str, Any]]:
    """What torchtitan makes of each case.

    Raises:
        MeasurementError: the process left no answers.
    """
    asked, answers = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps([case.spec.model_dump(mode="json") for case in every]))
    argv = (sys.executable, "-m", "trn_validate.workload.scale")
    result = launcher.launch(
        LaunchRequest(
            name="scale",
            argv=(*argv, "--cases", str(asked), "--answers", str(answers)),
            folder=folder / "scale",
            env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            wall_seconds=seconds,
            silence_seconds=seconds,
        )
    )
    try:
        found: list[dict[str, Any]] = json.loads(answers.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise MeasurementError(f"torchtitan gave no answer: {result.what}") from None
    return found


def judge(case: Case, answer: Mapping[str, Any]) -> Row:
    """Hold what torchtitan made of a case against what the plan says."""
    rung, plan, degrees = case.rung, case.plan, case.rung.degrees
    wrong = list(problems(plan, rung, rung.ladder.model.resolved()))
    gib = None
    if "refused" in answer:
        wrong.append(f"torchtitan refuses it: {answer['refused']}")
    else:
        share = degrees.world_size // plan.nodes
        wrong += _apart(answer["neighbours"], share)
        shards = degrees.dp_shard * degrees.cp * degrees.tp * degrees.pp
        gib = answer["parameters"] * STATE_BYTES / shards / 2**30
        has = plan.profile.memory_gib_per_core
        if not gib <= has:
            wrong.append(f"{gib:.1f} GiB of state, but a core has {has}")
    return Row(
        rung=rung.name,
        nodes=plan.nodes,
        degrees=str(degrees),
        ranks=degrees.world_size,
        gib_per_rank=gib,
        problems=tuple(wrong),
    )


def _apart(neighbours: Mapping[str, Mapping[str, Iterable[int]]], share: int) -> Iterator[str]:
    for rank, axes in neighbours.items():
        for axis, ranks in axes.items():
            if len({other // share for other in ranks}) > 1:
                yield f"{axis} of rank {rank} crosses nodes: ranks {', '.join(map(str, ranks))}"


def show_check(
    config: Path | None, model_path: str, settings: Iterable[str], *, as_json: bool = False
) -> int:
    """Say of each rung that crosses whether it would hold on 2 to 64 nodes; gives the exit status.

    Raises:
        UsageError: no rung crosses nodes.
        MeasurementError: torchtitan could not be asked.
    """
    plan = choose_plan(config, model_path, settings).plan
    every = tuple(cases(plan))
    if not every:
        raise UsageError(
            "no rung of this plan crosses nodes, so there is nothing to check on more of them",
            where=plan.source,
            todo="Say crosses in a rung, or ask for the plan over two: --set nodes=2.",
        )
    with tempfile.TemporaryDirectory(prefix="trn-validate-") as folder:
        answers = ask(every, Path(folder), LocalLauncher())
    rows = [judge(case, answer) for case, answer in zip(every, answers, strict=True)]
    if as_json:
        print(json.dumps([vars(row) for row in rows], indent=2))
    else:
        print("computed in one process, not run: config, mesh and sizes, nothing of speed")
        for row in rows:
            memory = "" if row.gib_per_rank is None else f"{row.gib_per_rank:.2f} GiB of state"
            print(
                f"{row.rung:<16} {row.nodes:>3} nodes {row.ranks:>5} ranks  {row.degrees:<28} "
                f"{memory}  {'; '.join(row.problems) or 'ok'}"
            )
    return FAILED if any(row.problems for row in rows) else PASSED
