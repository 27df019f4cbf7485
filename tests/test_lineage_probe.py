from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trn_validate import lineage_probe

TORCH = """
from types import SimpleNamespace as Made
import os
{before}
__version__ = "2.14.0"
_C = Made(_get_privateuse1_backend_name=lambda: {name!r})
{after}
"""
NEURON = """
def fails():
    raise RuntimeError("nrt_init status 1")
neuron = Made(is_available=lambda: True, device_count={count},
              get_device_properties=lambda: Made(name="trn2"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder before all others on the path, with no torch loaded."""
    loaded = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.partition(".")[0] in ("torch", "torch_neuronx")
    }
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("torch", "torch_neuronx", "torch_neuronx.neuron_dynamo_backend"):
        sys.modules.pop(name, None)
    sys.modules.update(loaded)


def probe(
    folder: Path, *, before: str = "", name: str = "privateuseone", after: str = ""
) -> tuple[int, dict[str, Any]]:
    (folder / "torch.py").write_text(TORCH.format(before=before, name=name, after=after))
    status = lineage_probe.main(str(folder / "answer.json"))
    return status, json.loads((folder / "answer.json").read_text())


def test_a_torch_without_a_backend_touches_no_device(folder: Path) -> None:
    status, answer = probe(folder)
    assert (status, answer["result"], answer["torch"]) == (0, "imported", "2.14.0")
    assert answer["privateuse1"] == "privateuseone"
    assert (answer["modules"], answer["attributes"]) == ([], [])
    assert "available" not in answer


def test_a_native_backend_tells_its_devices_and_what_it_can_do(folder: Path) -> None:
    package = folder / "torch_neuronx"
    package.mkdir()
    (package / "__init__.py").write_text("nki_op = 1\n__version__ = '0.1.0'\n")
    (package / "neuron_dynamo_backend.py").write_text("")
    after = "import torch_neuronx\n" + NEURON.format(count="lambda: 4")
    _, answer = probe(folder, name="neuron", after=after)
    assert (answer["available"], answer["devices"], answer["chip"]) == (True, 4, "trn2")
    assert answer["modules"] == ["torch_neuronx.neuron_dynamo_backend"]
    assert answer["attributes"] == ["nki_op"]
    assert answer["attribute_version"] == "0.1.0"


def test_a_package_that_nobody_loaded_is_not_loaded_for_the_answer(folder: Path) -> None:
    (folder / "torch_neuronx").mkdir()
    (folder / "torch_neuronx/__init__.py").write_text("raise SystemExit(3)\n")
    (folder / "torch_neuronx/neuron_dynamo_backend.py").write_text("")
    status, answer = probe(folder)
    assert (status, answer["modules"]) == (0, [])


def test_a_runtime_that_does_not_start_is_told_by_its_error(folder: Path) -> None:
    status, answer = probe(folder, name="neuron", after=NEURON.format(count="fails"))
    assert (status, answer["result"]) == (0, "imported")
    assert answer["runtime_error"] == "RuntimeError: nrt_init status 1"


def test_a_backend_that_breaks_the_import_is_told_with_its_cause(folder: Path) -> None:
    before = (
        "try:\n    raise OSError('libnrt.so.1: no such file')\n"
        "except OSError as error:\n"
        "    raise RuntimeError('Failed to load the backend extension') from error\n"
    )
    status, answer = probe(folder, before=before)
    assert status == 1
    assert answer["result"] == (
        "RuntimeError: Failed to load the backend extension <- OSError: libnrt.so.1: no such file"
    )
    assert "privateuse1" not in answer


def test_variables_are_recorded_on_both_sides_of_the_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O1")
    monkeypatch.setenv("MY_SECRET", "x")
    # Set and taken away, so that what the import sets does not outlive the test.
    monkeypatch.setenv("NEURON_RT_DBG_ZEROCOPY", "0")
    monkeypatch.delenv("NEURON_RT_DBG_ZEROCOPY")
    _, answer = probe(folder, before="os.environ['NEURON_RT_DBG_ZEROCOPY'] = '1'")
    assert answer["before"] == {"NEURON_CC_FLAGS": "-O1"}
    assert answer["after"] == {"NEURON_CC_FLAGS": "-O1", "NEURON_RT_DBG_ZEROCOPY": "1"}


def test_entry_points_are_told_with_the_package_that_brings_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SimpleNamespace(
        value="torch_neuronx:_autoload", dist=SimpleNamespace(name="torch-neuronx", version="2.14")
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    _, answer = probe(folder)
    assert answer["backends"] == [
        {"value": "torch_neuronx:_autoload", "distribution": "torch-neuronx 2.14"}
    ]
