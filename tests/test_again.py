"""Running one stage of a finished run again, by a stand-in for the pipeline."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from scripts.again import run_again, timed_pairs
from tests.builders import load_plan, verdict
from trn_validate.errors import UsageError
from trn_validate.run import Run
from trn_validate.session import plan_text
from trn_validate.store import Store
from trn_validate.verdict import Verdict

STAGE = "parallelism.fsdp"
LOOKS = """
import sys, time
from pathlib import Path
assert sys.argv.count("--reports") == 1 and sys.argv[1:3] == ["--only", "a b"], sys.argv
(run,) = Path(sys.argv[sys.argv.index("--reports") + 1]).iterdir()
(run / "plan.yaml").unlink()
held = b"x" * 2**25
time.sleep(0.5)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    plan = load_plan(tmp_path)
    return Store(tmp_path / "reports").create(plan.target, plan.path, plan_text(plan))


def answered(run: Run, *words: str) -> Verdict:
    return verdict(stage=STAGE, run=run.name, rerun=shlex.join(["python", *words]), seconds=2.0)


@pytest.mark.parametrize("elsewhere", [(), ("--reports", "<reports>")])
def test_it_runs_in_a_copy_and_is_timed(run: Run, elsewhere: tuple[str, ...]) -> None:
    again = run_again(run, answered(run, "-c", LOOKS, "--only", "a b", *elsewhere))
    assert again.stage == STAGE
    assert again.first == 2.0
    assert again.seconds >= 0.5
    assert again.ratio == again.seconds / 2.0
    assert again.peak_bytes > 2**25
    assert (run.folder / "plan.yaml").is_file()


def test_a_stage_that_does_not_pass_again_gives_no_figure(run: Run) -> None:
    with pytest.raises(UsageError, match=f"{STAGE} ended with status 4"):
        run_again(run, answered(run, "-c", "raise SystemExit(4)"))


PAIRS = """
import sys
from pathlib import Path
run = next(Path(sys.argv[sys.argv.index("--reports") + 1]).glob("[!.]*"))
assert sys.argv[-2:] == ["--set", "kernel_pairs=4"], sys.argv
text = (run / "given.json").read_text()
(run / "parallelism.fsdp.json").write_text(text)
"""


def test_pairs_are_asked_of_a_copy_and_its_verdict_is_given(run: Run) -> None:
    given = answered(run, "-c", PAIRS).model_copy(update={"facts": {"kernels: speed": "faster"}})
    (run.folder / "given.json").write_text(given.to_json(), encoding="utf-8")
    found = timed_pairs(run, given, 4)
    assert found.facts == {"kernels: speed": "faster"}
    assert run.read(STAGE) is None
    with pytest.raises(UsageError, match="ended with status 4"):
        timed_pairs(run, answered(run, "-c", "raise SystemExit(4)"), 4)
