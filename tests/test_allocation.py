from __future__ import annotations

from pathlib import Path

import pytest

from trn_validate.allocation import Allocation, find_allocation, job_of
from trn_validate.errors import UsageError

INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "scontrol"
    command.write_text('#!/bin/sh\n[ "$3" = "n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("scontrol")
def test_an_allocation_names_its_nodes_and_the_one_that_is_here() -> None:
    found = find_allocation({**INSIDE, "SLURMD_NODENAME": "n2"})
    assert (found.job, found.nodes, found.here) == ("7", ("n1", "n2", "n3"), "n2")


@pytest.mark.usefixtures("scontrol")
def test_a_machine_outside_of_its_nodes_is_none_of_them() -> None:
    assert find_allocation(INSIDE).here is None


def test_without_an_allocation_the_message_says_how_to_get_one() -> None:
    with pytest.raises(UsageError, match=r"runs in none.*sbatch slurm/validate\.sbatch"):
        find_allocation({})


def test_a_cluster_whose_commands_are_missing_is_a_mistake_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="scontrol does not tell"):
        find_allocation(INSIDE)


def test_the_node_that_is_here_is_taken_first() -> None:
    found = Allocation(job="7", nodes=("n1", "n2", "n3"), here="n2")
    assert found.take(1) == ("n2",)
    assert found.take(3) == ("n2", "n1", "n3")


def test_more_nodes_than_there_are_is_a_mistake_of_use() -> None:
    with pytest.raises(UsageError, match="4 nodes are asked for, and job 7 has 3"):
        Allocation(job="7", nodes=("n1", "n2", "n3"), here=None).take(4)


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "slurm 7"),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, "slurm 7, restart 2"),
    ],
)
def test_a_job_is_named_with_its_restarts(variables: dict[str, str], job: str | None) -> None:
    assert job_of(variables) == job
