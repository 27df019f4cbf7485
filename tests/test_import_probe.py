from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ROOT
from trn_validate import import_probe


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported, and are forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def probe(modules: Path, text: str, distribution: str = "pydantic") -> tuple[int, dict[str, Any]]:
    """Exit status and answer for a module of this text."""
    (modules / "probed_module.py").write_text(text)
    file = modules / "answer.json"
    status = import_probe.main(distribution, ["probed_module"], str(file))
    return status, json.loads(file.read_text())


def test_a_module_that_imports_is_told_with_version_place_and_time(modules: Path) -> None:
    status, answer = probe(modules, "value = 1\n")
    assert status == 0
    assert answer["result"] == "imported"
    assert answer["origin"] == str(modules / "probed_module.py")
    assert answer["version"][0].isdigit()
    assert answer["seconds"] >= 0
    assert (answer["module"], answer["distribution"]) == ("probed_module", "pydantic")


def test_a_module_without_a_distribution_is_told_as_absent(modules: Path) -> None:
    status, answer = probe(modules, "", distribution="no-such-distribution")
    assert (status, answer["version"], answer["result"]) == (0, "absent", "imported")


def test_a_model_s_table_of_flavours_is_told(modules: Path) -> None:
    text = "qwen3_configs = {'0.6B': 1, '30B-A3B': 2}\nother_configs = 3\n"
    assert probe(modules, text)[1]["flavors"] == "0.6B, 30B-A3B"


def test_a_module_without_such_a_table_tells_none(modules: Path) -> None:
    assert probe(modules, "configs = {'a': 1}\n")[1]["flavors"] == ""


def test_a_namespace_has_no_file(modules: Path) -> None:
    (modules / "probed_namespace").mkdir()
    file = modules / "answer.json"
    assert import_probe.main("pydantic", ["probed_namespace"], str(file)) == 0
    assert json.loads(file.read_text())["origin"] == "namespace"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise OSError('two\\nlines')", "OSError: two lines"),
    ],
)
def test_whatever_an_import_raises_is_told_and_the_status_is_1(
    modules: Path, text: str, result: str
) -> None:
    status, answer = probe(modules, text)
    assert status == 1
    assert answer["result"].rstrip() == result.rstrip()
    assert "origin" not in answer


def test_a_module_that_does_not_exist_is_told(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    assert import_probe.main("nothing", ["no_such_module_at_all"], str(file)) == 1
    assert "No module named" in json.loads(file.read_text())["result"]


def test_the_cause_behind_an_error_is_told_too(modules: Path) -> None:
    text = (
        "try:\n"
        "    import libneuron_that_is_missing\n"
        "except ImportError as error:\n"
        "    raise RuntimeError('the backend failed to load') from error\n"
    )
    assert probe(modules, text)[1]["result"] == (
        "RuntimeError: the backend failed to load <- "
        "ModuleNotFoundError: No module named 'libneuron_that_is_missing'"
    )


def test_an_error_during_another_is_told_with_it(modules: Path) -> None:
    text = "try:\n    {}['key']\nexcept KeyError:\n    [].pop()\n"
    assert probe(modules, text)[1]["result"] == (
        "IndexError: pop from empty list <- KeyError: 'key'"
    )


def test_an_error_that_is_its_own_cause_is_told_once() -> None:
    error = ValueError("round")
    error.__cause__ = error
    assert import_probe.chain(error) == "ValueError: round"


def test_errors_that_cause_each_other_are_told_once_each() -> None:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    assert import_probe.chain(one) == "ValueError: one <- KeyError: 'other'"


def test_the_probe_runs_as_a_command_and_needs_the_standard_library_alone(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    code = (
        "import runpy, sys\n"
        "sys.argv = ['import_probe', 'json', 'json', sys.argv[1]]\n"
        "try:\n"
        "    runpy.run_module('trn_validate.import_probe', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
        "assert 'pydantic' not in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["result"] == "imported"


def load_at_once(site: Path, body: str) -> dict[str, str]:
    """Make a backend that loads with torch; the environment of a process that meets it."""
    info = site / "eager_backend-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eager-backend\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\neager = eager_backend:load\n")
    (site / "eager_backend.py").write_text(f"def load():\n    {body}\n")
    return {"PYTHONPATH": f"{site}:{ROOT}", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"}


def probed(tmp_path: Path, environment: dict[str, str], *names: str) -> tuple[int, str]:
    """Exit status and result of the probe as a command, for a distribution and modules."""
    file = tmp_path / "answer.json"
    done = subprocess.run(
        [sys.executable, "-m", "trn_validate.import_probe", *names, str(file)],
        env=environment,
        cwd=ROOT,
        check=False,
        timeout=120,
    )
    return done.returncode, json.loads(file.read_text())["result"]


def test_a_real_torch_whose_entry_point_raises_is_told_with_the_cause_behind_it(
    tmp_path: Path,
) -> None:
    """As a broken installation of the vendor's backend breaks every import of torch."""
    raises = "raise OSError('libnrt.so.1: cannot open shared object file')"
    environment = load_at_once(tmp_path / "site", raises)
    status, result = probed(tmp_path, environment, "torch", "torch")
    assert status == 1
    assert result.startswith("RuntimeError: Failed to load the backend extension: eager.")
    assert result.endswith("<- OSError: libnrt.so.1: cannot open shared object file")


def test_a_backend_that_brings_dynamo_with_torch_breaks_nothing_that_is_imported_after_torch(
    tmp_path: Path,
) -> None:
    environment = load_at_once(tmp_path / "site", "import torch._dynamo")
    # The seeded defect: what imports torch by itself is half imported when Dynamo asks for it.
    status, result = probed(tmp_path, environment, "spmd_types", "spmd_types")
    assert status == 1
    assert "partially initialized module 'spmd_types" in result
    assert probed(tmp_path, environment, "spmd_types", "torch", "spmd_types") == (0, "imported")
