from __future__ import annotations

import pytest

from trn_validate.neuron.catalogue import (
    CATALOGUE,
    COLLECTIVES,
    HOST,
    LINEAGE,
    PACKAGES,
    VARIABLES,
)
from trn_validate.neuron.finding import errors, facts_of, found, none_of


def test_a_finding_has_the_severity_and_the_remedy_of_its_entry() -> None:
    finding = found("driver_not_loaded", "no version", "/sys", raw="text", todo="look")
    assert (finding.severity, finding.raw) == ("error", "text")
    assert finding.todo == "look; " + CATALOGUE["driver_not_loaded"].todo
    assert str(finding).startswith("driver_not_loaded: /sys: no version; look; ")


def test_a_finding_that_the_catalogue_lacks_is_refused() -> None:
    with pytest.raises(KeyError):
        found("no_such_finding", "", "")


def test_warnings_fail_no_check() -> None:
    warning = found("root_disk_small", "8 GiB", "/")
    assert errors([warning]) == ()
    assert none_of("name", [warning]).passed


def test_a_check_names_the_first_errors_and_counts_the_others() -> None:
    told = [found("cores_held", f"pid {pid}", "/proc") for pid in range(6)]
    check = none_of("held", told)
    assert (check.passed, check.measured) == (False, 6)
    assert "pid 3" in check.detail
    assert "pid 4" not in check.detail
    assert check.detail.endswith("and 2 more")


def test_findings_of_one_name_are_one_fact() -> None:
    told = [found("cores_held", f"pid {pid}", "/proc") for pid in (1, 2)]
    (key,) = facts_of(told)
    assert key == "error cores_held"
    assert facts_of(told)[key].count("pid ") == 2


def test_no_two_findings_have_one_name_and_each_says_what_to_do() -> None:
    groups = (HOST, PACKAGES, LINEAGE, VARIABLES, COLLECTIVES)
    assert len(CATALOGUE) == sum(len(group) for group in groups)
    assert [name for name, entry in CATALOGUE.items() if len(entry.todo) < 10] == []
