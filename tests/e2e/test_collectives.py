"""Two real ranks whose communication is spoiled: each fault is found by what was meant for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import load_plan
from tests.fake_training import Rig, calm_host
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.launch_local import LocalLauncher
from trn_validate.verdict import Outcome, Verdict

pytestmark = pytest.mark.e2e

STAGE = "environment.collectives"


class Spoiled(LocalLauncher):
    """The real launcher, with a hook in every run spec."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.hook = f"tests.defects.collectives:{hook}"

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        for request in requests:
            path = Path(request.argv[-1])
            spec = json.loads(path.read_text(encoding="utf-8")) | {"hooks": [self.hook]}
            path.write_text(json.dumps(spec), encoding="utf-8")
        return super().together(requests)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        rig = Rig(tmp_path, plan=load_plan(tmp_path, "timeouts.train=15"))
        rig.walk(only="environment.device")
        rig.walk(only="environment.imports")
        yield rig


def verdict(rig: Rig, hook: str) -> Verdict:
    rig.launcher = Spoiled(hook)  # type: ignore[assignment]  # the executor takes any launcher
    rig.walk(only=STAGE)
    return rig.verdict(STAGE)


def test_every_wrong_answer_is_named_with_its_rank(rig: Rig) -> None:
    found = verdict(rig, "wrong")
    assert found.outcome is Outcome.FAILED
    assert found.hooks == ("tests.defects.collectives:wrong",)
    assert [c.name for c in found.failed_checks] == ["2 ranks: operations with a wrong answer"]
    table = {one.operation: one for one in found.capabilities}
    for name in (
        "objects",
        "broadcast float32",
        "all_reduce float32",
        "all_reduce_max float32",
        "all_gather float32",
        "all_gather_list float32",
        "reduce_scatter float32",
        "all_to_all float32",
        "all_to_all_list float32",
        "send_recv float32",
        "all_reduce bfloat16",
        "all_reduce int64",
        "all_reduce float32 scalar",
        "all_to_all float32 uneven",
        "all_to_all_list float32 uneven",
        "all_reduce float32 large",
    ):
        assert table[name].state == "wrong", table[name]
        assert "rank" in table[name].detail
    assert "its input was changed" in table["all_to_all float32"].detail
    assert "is nan, not" in table["send_recv float32"].detail
    assert table["barrier"].state == "right"


def test_a_hang_and_a_crash_are_named_with_their_rank_and_cost_only_themselves(rig: Rig) -> None:
    found = verdict(rig, "stuck")
    assert found.outcome is Outcome.FAILED
    (check,) = found.failed_checks
    assert check.name == "2 ranks: needed operations that hung or crashed"
    assert check.measured == 2
    table = {one.operation: one for one in found.capabilities}
    assert table["all_gather float32"].state == "hung"
    assert table["all_gather float32"].detail.startswith("rank 1: had not issued it")
    assert table["reduce_scatter float32"].state == "crashed"
    assert table["reduce_scatter float32"].detail.startswith("rank 0: ")
    others = [one.state for name, one in table.items() if name in ("objects", "all_to_all float32")]
    assert others == ["right", "right"]
    assert [command.name for command in found.commands] == [
        "ranks-2",
        "ranks-2-again-1",
        "ranks-2-again-2",
    ]


def test_ranks_that_never_meet_are_an_error_with_their_reason(rig: Rig) -> None:
    found = verdict(rig, "elsewhere")
    assert found.outcome is Outcome.ERROR
    assert found.problem is not None
    assert "Failed to execute the device barrier 2" in found.problem.what
    assert found.problem.rank in (0, 1)
