from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.neuron.machine import Machine
from trn_validate.neuron.surroundings import (
    HOST_GIB_PER_COMPILE,
    HOST_GIB_PER_RANK,
    compile_slots,
    judge_efa,
    judge_memory,
    judge_root_disk,
    judge_world_sizes,
    system_packages,
)


def test_memory_is_left_for_compilers_after_every_rank_has_its_own() -> None:
    ranks = 4 * HOST_GIB_PER_RANK
    assert compile_slots(ranks + 2.5 * HOST_GIB_PER_COMPILE, 4) == 2
    assert compile_slots(ranks, 4) == 0
    assert compile_slots(ranks - 1, 4) == 0
    assert compile_slots(10_000, 4) == 4


def test_memory_for_fewer_compilers_than_ranks_is_a_warning() -> None:
    (finding,) = judge_memory(2000, 64)
    assert (finding.id, finding.severity) == ("host_memory_small", "warning")
    assert "48 compilers beside 64 ranks" in finding.what
    assert judge_memory(3000, 64) == ()


def test_a_root_volume_that_is_smaller_than_advised_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = SimpleNamespace(total=512e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: size)
    assert judge_root_disk(Path("/")) == ()
    size.total = 100 * 2**30
    (finding,) = judge_root_disk(Path("/"))
    assert (finding.id, finding.what) == ("root_disk_small", "100 GiB")


def test_efa_is_asked_for_only_with_more_than_one_node(machine: Machine) -> None:
    assert judge_efa(2, machine.ask) == ()
    machine.says("fi_info -p", "", 61, "fi_getinfo: -61")
    assert [finding.id for finding in judge_efa(2, machine.ask)] == ["efa_missing"]
    machine.loses("fi_info")
    assert [finding.id for finding in judge_efa(2, machine.ask)] == ["efa_missing"]
    assert judge_efa(1, machine.ask) == ()


def test_world_sizes_that_users_saw_fail_are_a_warning() -> None:
    assert judge_world_sizes((1, 2, 4, 8, 16, 32, 64)) == ()
    (finding,) = judge_world_sizes((4, 12, 3, 3))
    assert finding.id == "world_size_odd"
    assert "3, 12" in finding.what


def test_packages_of_the_system_are_read_from_dpkg_or_rpm(machine: Machine) -> None:
    read = system_packages(machine.ask)
    assert read.value is not None
    assert read.value["aws-neuronx-dkms"] == "2.31.7.0"
    assert len(read.value) == 4
    machine.loses("dpkg-query")
    machine.says("rpm -qa", "aws-neuronx-tools 2.33.38.0\n")
    assert system_packages(machine.ask).value == {"aws-neuronx-tools": "2.33.38.0"}
    machine.loses("rpm")
    assert system_packages(machine.ask).value is None
