"""Real processes of single operations, on the CPU against itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.environment_ops import OpsStage
from tests.fake_training import Rig, calm_host, cpu_plan
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.launch_local import LocalLauncher
from trn_validate.verdict import Outcome

pytestmark = pytest.mark.e2e

STAGE = "environment.ops"


class Spoiled(LocalLauncher):
    """The real launcher, with a hook in the run specs of the operations that are named."""

    def __init__(self, **hooks: str) -> None:
        super().__init__()
        self.hooks = hooks

    def launch(self, request: LaunchRequest) -> LaunchResult:
        if request.name in self.hooks:
            path = Path(request.argv[-1])
            hook = f"tests.defects.operations:{self.hooks[request.name]}"
            spec = json.loads(path.read_text(encoding="utf-8")) | {"hooks": [hook]}
            path.write_text(json.dumps(spec), encoding="utf-8")
        return super().launch(request)


def test_each_operation_has_its_answer_whatever_became_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm_host(monkeypatch)
    names = ("matmul", "gather", "topk", "cumsum", "round trip int64")
    plan = cpu_plan("timeouts.train=60")
    rig = Rig(tmp_path, plan=plan, stages=[OpsStage(operations=names)])
    rig.launcher = Spoiled(  # type: ignore[assignment]  # the executor takes any launcher
        matmul="scaled", gather="crashing", topk="hanging"
    )
    rig.walk()
    found = rig.verdict(STAGE)
    assert found.outcome is Outcome.FAILED
    table = {one.operation: one.state for one in found.capabilities}
    assert table == {
        "matmul": "wrong",
        "gather": "crashed",
        "topk": "hung",
        "cumsum": "right",
        "round trip int64": "right",
    }
    assert found.hooks == ("tests.defects.operations:scaled",)
    assert (found.device, found.versions["torch"][:2]) == ("cpu", "2.")
