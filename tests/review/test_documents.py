"""Whether ctrf.json, junit.xml and attestation.json keep to their published rules."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import jsonschema
import pytest

from stages import stages_of
from tests.fake_training import Rig, altered, within
from tests.review.bundles import made_rig
from trn_validate.errors import EvidenceError
from trn_validate.records import Step
from trn_validate.review import attestation, ctrf, junit, manifest
from trn_validate.review.documents import write_documents

CTRF: dict[str, Any] = {
    "type": "object",
    "required": ["results", "reportFormat", "specVersion"],
    "properties": {
        "reportFormat": {"const": "CTRF"},
        "specVersion": {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+$"},
        "runId": {"type": "string", "minLength": 1},
        "generatedBy": {"type": "string"},
        "results": {
            "type": "object",
            "required": ["tool", "summary", "tests"],
            "properties": {
                "tool": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string", "minLength": 1}},
                },
                "summary": {
                    "type": "object",
                    "required": [
                        *("tests", "passed", "failed", "skipped", "pending", "other"),
                        *("start", "stop"),
                    ],
                    "additionalProperties": {"type": "integer", "minimum": 0},
                },
                "tests": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "status", "duration"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1},
                            "status": {"enum": ["passed", "failed", "skipped", "pending", "other"]},
                            "duration": {"type": "integer", "minimum": 0},
                            "message": {"type": "string"},
                            "rawStatus": {"type": "string"},
                            "suite": {
                                "type": "array",
                                "items": {"type": "string", "minLength": 1},
                                "minItems": 1,
                            },
                        },
                    },
                },
                "extra": {"type": "object"},
            },
        },
    },
}
"""What ctrf-io/ctrf, schema/ctrf.schema.json, says of the fields that are used here."""


@pytest.fixture(scope="module", params=["passed", "failed"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A run that passed, and one that failed with stages blocked behind it."""
    wrong = [within("fsdp", altered(Step, step=3, loss=lambda loss: loss + 0.5))]
    defects = wrong if request.param == "failed" else []
    made = made_rig(tmp_path_factory.mktemp("documents"), *defects)
    write_documents(made.run, made.plan, made.gate.standings(), stages_of)
    return made


def verdicts(rig: Rig) -> dict[str, Any]:
    """Every verdict of a run."""
    return {stage.id: rig.verdict(stage.id) for stage in stages_of(rig.plan)}


def test_ctrf_keeps_to_its_schema_and_counts_what_it_lists(rig: Rig) -> None:
    report = json.loads((rig.run.folder / ctrf.NAME).read_bytes())
    jsonschema.validate(report, CTRF)
    tests, summary = report["results"]["tests"], report["results"]["summary"]
    assert summary["tests"] == len(tests)
    for status in ("passed", "failed", "skipped", "pending", "other"):
        assert summary[status] == sum(test["status"] == status for test in tests)
    made = verdicts(rig)
    assert len(tests) == len(made) + sum(len(v.checks) for v in made.values())
    failed = {test["name"] for test in tests if test["status"] == "failed"}
    assert failed >= {check.name for v in made.values() for check in v.failed_checks}
    assert summary["start"] <= summary["stop"]


def test_junit_has_a_suite_a_stage_and_a_case_a_check(rig: Rig) -> None:
    root = Xml.parse(rig.run.folder / junit.NAME).getroot()
    assert root.tag == "testsuites"
    made = verdicts(rig)
    assert [suite.get("name") for suite in root] == list(made)
    for suite, verdict in zip(root, made.values(), strict=True):
        assert suite.get("tests") == str(len(suite.findall("testcase")))
        assert suite.get("failures") == str(len(verdict.failed_checks))
        blocked = verdict.blocked_by is not None
        assert suite.get("skipped") == str(int(blocked))
        assert len(suite) == len(verdict.checks) + blocked
        assert all(case.get("name") and case.get("classname") for case in suite)
    assert root.get("tests") == str(sum(len(suite) for suite in root))


def test_the_attestation_is_a_statement_of_a_test_result(rig: Rig) -> None:
    statement = json.loads((rig.run.folder / attestation.NAME).read_bytes())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    (subject,) = statement["subject"]
    listed = (rig.run.folder / manifest.NAME).read_bytes()
    assert subject["digest"] == {"sha256": hashlib.sha256(listed).hexdigest()}
    predicate = statement["predicate"]
    # result and configuration are required; each configuration is a descriptor with a digest.
    assert predicate["result"] in ("PASSED", "WARNED", "FAILED")
    (plan,) = predicate["configuration"]
    wanted = hashlib.sha256((rig.run.folder / "plan.yaml").read_bytes()).hexdigest()
    assert plan["digest"] == {"sha256": wanted}
    tests = [predicate[f"{how}Tests"] for how in ("passed", "warned", "failed")]
    assert sorted(name for some in tests for name in some) == sorted(verdicts(rig))


def test_a_rehearsal_is_never_said_to_have_passed(rig: Rig) -> None:
    result = json.loads((rig.run.folder / attestation.NAME).read_bytes())["predicate"]["result"]
    failed = any(verdict.failed_checks for verdict in verdicts(rig).values())
    assert result == ("FAILED" if failed else "WARNED")


def test_the_manifest_lists_every_file_but_what_is_made_from_it(rig: Rig) -> None:
    folder = rig.run.folder
    listed = manifest.parse((folder / manifest.NAME).read_text())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert listed.keys() == files - {manifest.NAME, attestation.NAME}
    assert all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        for name, digest in listed.items()
    )


@pytest.mark.parametrize("text", ["abc  name\n", f"{'0' * 64} name\n", f"{'0' * 64}  a\n" * 2])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(EvidenceError, match="manifest"):
        manifest.parse(text)


def test_what_xml_has_no_place_for_is_taken_out(tmp_path: Path) -> None:
    rig = made_rig(tmp_path)
    (standing, *rest) = rig.gate.standings()
    assert standing.verdict is not None
    odd = standing.verdict.model_copy(update={"started_at": "\x00\x1b"})
    text = junit.render("run\x01", [replace(standing, verdict=odd), *rest])
    assert Xml.fromstring(text.partition("\n")[2]).get("name") == "run?"
