from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.synthetic import PARAMETERS, judge, write
from trn_validate.folding import read_ranks
from trn_validate.records import rank_file


def test_as_many_ranks_and_steps_are_written_as_were_asked_for(tmp_path: Path) -> None:
    size = write(tmp_path, 8, 3)
    assert size == sum(path.stat().st_size for path in tmp_path.iterdir())
    records = read_ranks(tmp_path, 8)
    assert sorted(records.ranks) == list(range(8))
    assert [s.step for s in records.steps] == [1, 2, 3]
    assert {len(line.norms) for lines in records.captures.values() for line in lines} == {
        PARAMETERS
    }
    assert judge(tmp_path, 8, 3) > 0


@pytest.mark.parametrize(("ranks", "steps"), [(9, 3), (8, 4)])
def test_fewer_records_than_are_said_are_not_judged_in_silence(
    tmp_path: Path, ranks: int, steps: int
) -> None:
    write(tmp_path, 8, 3)
    with pytest.raises(RuntimeError, match="did not pass"):
        judge(tmp_path, ranks, steps)


def test_a_rank_without_its_last_line_is_not_judged_in_silence(tmp_path: Path) -> None:
    write(tmp_path, 4, 2)
    path = rank_file(tmp_path, 2)
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]))
    with pytest.raises(RuntimeError, match="did not pass"):
        judge(tmp_path, 4, 2)


def test_what_it_cost_is_printed_as_json() -> None:
    argv = [sys.executable, "-m", "scripts.synthetic", "--ranks", "4", "--steps", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["ranks"], found["steps"]) == (4, 2)
    assert min(found["seconds"], found["peak_bytes"], found["record_bytes"]) > 0
