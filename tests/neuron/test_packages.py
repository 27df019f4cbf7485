from __future__ import annotations

import importlib.metadata

import pytest

from trn_validate.neuron.packages import installed, judge_packages

HEALTHY = {
    "torch": "2.14.0+cpu",
    "torch-neuronx": "2.14.3.0.99",
    "neuronx-cc": "2.28.7631.0",
    "nki": "0.7.0",
    "pip": "26.1",
}
COMPILER = "/opt/venv/bin/neuronx-cc"


def names(**changes: str) -> list[str]:
    versions = HEALTHY | {name.replace("_", "-"): value for name, value in changes.items()}
    return [finding.id for finding in judge_packages(versions, COMPILER)]


def test_a_healthy_installation_has_no_fault() -> None:
    assert names() == []


@pytest.mark.parametrize(
    ("package", "bad", "good", "finding"),
    [
        ("torch", "2.13.1", "2.14.9", "torch_mismatch"),
        ("torch", "2.1.0", "2.14", "torch_mismatch"),
        ("torch", "unknown", "2.14.0a0", "torch_mismatch"),
        ("nki", "0.5.9", "0.6.0", "nki_too_old"),
        ("pip", "23.3.2", "24.0", "pip_too_old"),
        ("pip", "9.0", "24.0", "pip_too_old"),
    ],
)
def test_a_version_that_cannot_work_is_named(
    package: str, bad: str, good: str, finding: str
) -> None:
    assert names(**{package: bad}) == [finding]
    assert names(**{package: good}) == []


def test_a_torch_that_is_gone_does_not_match() -> None:
    assert [f.id for f in judge_packages({"torch-neuronx": "2.14.3.0.9"}, COMPILER)] == [
        "torch_mismatch"
    ]


def test_a_compiler_that_ranks_would_not_find_is_named() -> None:
    assert [f.id for f in judge_packages(HEALTHY, None)] == ["compiler_not_on_path"]


def test_the_legacy_package_beside_the_native_one_is_a_warning() -> None:
    assert names(torch_xla="2.11.0") == ["legacy_xla_present"]


def test_a_machine_without_the_vendor_s_packages_owes_none_of_them() -> None:
    assert judge_packages({"torch": "2.14.1", "torch-xla": "2.9", "pip": "26"}, None) == ()


def test_versions_are_read_without_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "nki":
            raise importlib.metadata.PackageNotFoundError(name)
        return f"1.{name}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert "nki" not in installed()
    assert installed()["torch"] == "1.torch"
