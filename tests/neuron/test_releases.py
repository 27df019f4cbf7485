from __future__ import annotations

import pytest

from tests.neuron.machine import Machine
from trn_validate.neuron.releases import Match, judge_release, load, match
from trn_validate.neuron.surroundings import system_packages

HEALTHY = {
    "aws-neuronx-dkms": "2.31.7.0",
    "aws-neuronx-runtime-lib": "2.35.30.0-12ab34cd5",
    "neuronx-cc": "2.28.7631.0+af12",
    "nki": "0.7.0",
    "torch-neuronx": "2.14.3.0.1234",
}


def names(python: str = "3.12", system: str = "ubuntu 26.04", **changes: str) -> list[str]:
    versions = HEALTHY | {name.replace("_", "-"): value for name, value in changes.items()}
    return [finding.id for finding in judge_release(versions, python, system, load())[1]]


def test_every_row_has_a_source_and_no_two_have_one_name() -> None:
    rows = load().releases
    assert len({row.sdk for row in rows}) == len(rows) >= 5
    assert [row.sdk for row in rows if not row.sources or not row.versions] == []
    assert [row.sdk for row in rows] == sorted((row.sdk for row in rows), reverse=True)


def test_every_contradiction_names_a_row_and_two_documents() -> None:
    known = load()
    rows = {row.sdk for row in known.releases}
    assert known.contradictions
    assert [c for c in known.contradictions if c.sdk not in rows or len(c.said) < 2] == []


def test_an_installation_of_one_release_has_no_deviation() -> None:
    assert match(HEALTHY, load()) == Match(sdk="2.33", agreeing=tuple(HEALTHY), deviations=())
    assert names() == []


def test_the_other_torch_of_a_release_belongs_to_it_too() -> None:
    assert names(torch_neuronx="2.13.3.0.7") == []


def test_the_packages_of_a_host_belong_to_its_release(machine: Machine) -> None:
    found = match(system_packages(machine.ask).value or {}, load())
    assert found is not None
    assert (found.sdk, len(found.agreeing), found.deviations) == ("2.33", 4, ())


def test_a_component_of_another_release_is_listed_with_both() -> None:
    matched, told = judge_release(HEALTHY | {"nki": "0.6.0"}, "3.12", "ubuntu 26.04", load())
    assert matched is not None
    assert matched.deviations == ("nki 0.6.0 (release 2.32), not 0.7.0",)
    (finding,) = told
    assert (finding.id, finding.severity) == ("release_mixed", "warning")
    assert "nearest to release 2.33" in finding.what


@pytest.mark.parametrize("driver", ["2.30.2.0", "2.20.1.0", "2.31.70"])
def test_a_driver_that_is_not_the_release_s_is_listed(driver: str) -> None:
    assert names(aws_neuronx_dkms=driver) == ["release_mixed"]


def test_a_compiler_newer_than_the_runtime_is_named() -> None:
    assert names(aws_neuronx_runtime_lib="2.34.10.0") == [
        "compiler_newer_than_runtime",
        "release_mixed",
    ]
    assert names(neuronx_cc="2.27.5334.0") == ["release_mixed"]


@pytest.mark.parametrize("versions", [{}, {"nki": "9.0"}, {"torch": "2.14.1"}])
def test_versions_that_no_row_knows_are_a_warning(versions: dict[str, str]) -> None:
    matched, (finding,) = judge_release(versions, "3.12", "ubuntu 26.04", load())
    assert matched is None
    assert (finding.id, finding.severity) == ("release_unknown", "warning")


def test_a_python_or_a_system_outside_of_the_matrix_is_a_warning() -> None:
    assert names(python="3.9") == ["python_unsupported"]
    assert names(system="debian 12") == ["os_unsupported"]
    assert names(system="") == ["os_unsupported"]


def test_a_row_without_a_matrix_says_nothing_of_python() -> None:
    versions = {"nki": "0.6.0", "neuronx-cc": "2.27.5334.0"}
    assert judge_release(versions, "3.9", "debian 12", load())[1] == ()


@pytest.mark.parametrize(
    ("where", "said"),
    [({"system": "ubuntu 24.04"}, "26.04 alone"), ({"python": "3.11"}, "3.10 to 3.14")],
)
def test_what_official_documents_do_not_agree_about_is_a_warning(
    where: dict[str, str], said: str
) -> None:
    assert names(**where) == ["documents_contradict"]
    python, system = where.get("python", "3.12"), where.get("system", "ubuntu 26.04")
    (finding,) = judge_release(HEALTHY, python, system, load())[1]
    assert said in finding.what
    assert " against " in finding.what
