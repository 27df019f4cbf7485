"""What a rank may not do on a neuron device: touch it before process-group init, fork after it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchtitan.tools.utils as utils

from tests.builders import ROOT, run_spec
from trn_validate.spec import ModelChoice, RunSpec
from trn_validate.workload import __main__ as rank
from trn_validate.workload.registry import from_spec

FORKING = frozenset({"subprocess", "multiprocessing", "concurrent", "pty"})
"""Modules that start processes, by fork or by what the runtime cannot tell from it."""
FORKING_CALLS = frozenset({"fork", "forkpty", "system", "popen", "posix_spawn"})


class Untouched:
    """A device module that notes every use."""

    def __init__(self) -> None:
        self.uses: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.uses.append(name)
        return lambda *args, **kwargs: 0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Untouched:
    """torchtitan has found a neuron device, which nobody has used yet."""
    module = Untouched()
    monkeypatch.setattr(torch, "neuron", module, raising=False)
    monkeypatch.setattr(utils, "device_type", "neuron")
    monkeypatch.setattr(utils, "device_module", module)
    monkeypatch.setattr(sys, "argv", ["rank"])
    monkeypatch.setenv("TRN_VALIDATE_SPEC", "")
    return module


def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Do all that a rank of ours does before torchtitan builds its trainer."""
    spec = run_spec(
        device="neuron",
        model=ModelChoice(module="torchtitan.models.qwen3", flavor="debugmodel", layers=2),
        dump=str(tmp_path / "dump"),
        hooks=(),
    )
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    built: list[object] = []
    monkeypatch.setattr("torchtitan.train.main", lambda: built.append(from_spec()))
    rank._train(path, RunSpec.model_validate_json(path.read_text()))
    return built


def test_no_device_is_touched_before_torchtitan_makes_the_process_group(
    device: Untouched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(go(tmp_path, monkeypatch)) == 1
    assert device.uses == []
    assert not torch.distributed.is_initialized()


def test_a_rank_that_touches_it_would_be_seen(
    device: Untouched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trn_validate.workload import device as ours

    monkeypatch.setattr(ours, "install", lambda name: utils.device_module.device_count())
    go(tmp_path, monkeypatch)
    assert device.uses == ["device_count"]


def forks(source: str) -> Iterator[str]:
    """What in a module could start a process."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [alias.name for alias in node.names]
            parts = {part for name in (module, *names) for part in name.split(".")}
            yield from sorted(parts & (FORKING | FORKING_CALLS))
        elif isinstance(node, ast.Attribute) and node.attr in FORKING_CALLS:
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg in ("num_workers", "multiprocessing"):
            yield node.arg


FILES = sorted((ROOT / "trn_validate/workload").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_in_a_rank_forks(file: Path) -> None:
    assert list(forks(file.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import subprocess", ["subprocess"]),
        ("from torch import multiprocessing", ["multiprocessing"]),
        ("import torch.multiprocessing as mp", ["multiprocessing"]),
        ("from os import fork", ["fork"]),
        ("os.fork()", ["fork"]),
        ("DataLoader(data, num_workers=2)", ["num_workers"]),
        ("import os\nos.getpid()", []),
    ],
)
def test_whatever_forks_would_be_found(source: str, found: list[str]) -> None:
    assert list(forks(source)) == found


def test_the_data_of_a_rank_are_made_in_its_own_process(
    device: Untouched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = go(tmp_path, monkeypatch)
    loader = config.dataloader  # type: ignore[attr-defined]  # torchtitan has no types
    assert getattr(loader, "num_workers", 0) == 0
    assert os.environ["TRN_VALIDATE_SPEC"] == str(tmp_path / "spec.json")
