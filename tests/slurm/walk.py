"""Run some stages of a plan in one run folder, inside an allocation; say how each ended.

``python -m tests.slurm.walk REPORTS CONFIG STAGE... [KEY=VALUE...]``: a later call goes on in the
same run. The gate is left out, so that a fault can be put into one stage without those before it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline import _heed_signals
from stages import stages_of
from trn_validate.commands import gate_of
from trn_validate.execute import Executor
from trn_validate.launchers import launcher_of, node_names
from trn_validate.session import choose_plan, fingerprint_now, start
from trn_validate.store import Store


def main(reports: Path, config: Path, words: list[str]) -> None:
    settings = ["launcher=slurm", "nodes=2", *(word for word in words if "=" in word)]
    chosen = choose_plan(config, "native", settings)
    plan, store = chosen.plan, Store(reports)
    store.check_writable()
    run = store.newest(plan.target, plan.path, plan.nodes) or start(store, plan, fingerprint_now())
    run.redactor([name] for name in node_names(plan))
    launcher = launcher_of(plan)
    executor = Executor(plan=plan, run=run, launcher=launcher, choice=chosen.choice, say=_say)
    gate = gate_of(stages_of, plan, run, fingerprint_now())
    for name in (word for word in words if "=" not in word):
        stage = gate.stage(name)
        earlier = gate.standings(gate.stages.index(stage))
        verdict = executor.execute(stage, gate.expected(stage, earlier), earlier)
        _say(f"{name}: {verdict.outcome}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    _heed_signals()
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
