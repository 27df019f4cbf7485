"""A run on the rehearsal device cannot be read as one on a Trainium."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch_neuron_rehearsal
from torch_neuron_rehearsal.host import build
from torch_neuron_rehearsal.layout import HOST_ROOT, INSTANCES

from tests.builders import ROOT
from tests.test_evidence import run
from trn_validate.evidence import evidence
from trn_validate.target import HOST_ROOT as PRODUCTS
from trn_validate.verdict import Execution, Host

DISTRIBUTION = "torch-neuron-rehearsal 0.1.0+0123456789ab"


def test_a_real_run_would_be_evidence() -> None:
    assert evidence(run()) == (True, "")


@pytest.mark.parametrize(
    ("stage", "change", "why"),
    [
        ("baseline.eager", "root", "the host was read under /x"),
        ("baseline.eager", "target", "the target is rehearsal"),
        ("environment.imports", "distribution", "did not find torch-neuronx executing"),
    ],
)
def test_each_of_its_marks_alone_forbids_it(stage: str, change: str, why: str) -> None:
    verdicts = run()
    found = verdicts[stage]
    host = found.host.model_dump()
    changes = {
        "root": {"host": Host(**{**host, "root": "/x"})},
        "target": {"host": Host(**{**host, "target": "rehearsal"})},
        "distribution": {"execution": Execution(distribution=DISTRIBUTION)},
    }[change]
    real, reason = evidence({**verdicts, stage: found.model_copy(update=changes)})
    assert not real
    assert why in reason


def test_the_name_of_the_distribution_is_the_one_that_is_built() -> None:
    text = (ROOT / "rehearsal/pyproject.toml").read_text("utf-8")
    (name,) = re.findall(r'^name = "(.+)"$', text, re.M)
    assert DISTRIBUTION.startswith(f"{name} ")


def test_it_loads_only_where_the_root_was_moved_to_a_host_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HOST_ROOT == PRODUCTS
    for root in ("/", "", str(tmp_path)):
        monkeypatch.setenv(HOST_ROOT, root)
        with pytest.raises(RuntimeError, match="loads only on the host of `make rehearse`"):
            torch_neuron_rehearsal.rehearsed_host()
    build(tmp_path, INSTANCES["trn2.3xlarge"])
    assert torch_neuron_rehearsal.rehearsed_host() == tmp_path


@pytest.mark.parametrize("name", torch_neuron_rehearsal.VENDOR)
def test_it_refuses_to_load_beside_the_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    torch_neuron_rehearsal.refuse_beside_the_vendor()
    folder = tmp_path / f"{name.replace('-', '_')}-2.14.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.14.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=f"{name} 2.14.3 is installed"):
        torch_neuron_rehearsal.refuse_beside_the_vendor()


def test_the_environment_imports_torch_without_it() -> None:
    code = (
        "import importlib.metadata as m, torch\n"
        "print(torch._C._get_privateuse1_backend_name(), hasattr(torch, 'neuron'))\n"
        "print([e.value for e in m.entry_points(group='torch.backends')])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", HOST_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    first, entries = done.stdout.splitlines()
    assert first == "privateuseone False"
    assert "rehearsal" not in entries
