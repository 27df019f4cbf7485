"""junit.xml: the run as the report that CI systems read; a suite is a stage, a case is a check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from trn_validate.gate import Standing
from trn_validate.review.ctrf import why
from trn_validate.verdict import Outcome, Verdict

NAME = "junit.xml"

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no place for, not even escaped (section 2.2, Characters)."""


def render(run: str, standings: Sequence[Standing]) -> str:
    """The file's text."""
    root = Xml.Element("testsuites", name=_clean(run))
    for standing in standings:
        _suite(root, standing)
    for what in ("tests", "failures", "errors", "skipped"):
        root.set(what, str(sum(int(suite.get(what, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _suite(root: Xml.Element, standing: Standing) -> None:
    verdict, stage = standing.verdict, standing.stage.id
    suite = Xml.SubElement(root, "testsuite", name=stage)
    if verdict is None:
        Xml.SubElement(_case(suite, stage, "verdict"), "skipped", message="no verdict")
    else:
        suite.set("timestamp", _clean(verdict.started_at))
        _fill(suite, stage, verdict)
    suite.set("tests", str(len(suite)))
    for tag, what in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(what, str(sum(case.find(tag) is not None for case in suite)))
    suite.set("time", f"{verdict.seconds if verdict else 0.0:.3f}")


def _fill(suite: Xml.Element, stage: str, verdict: Verdict) -> None:
    for check in verdict.checks:
        case = _case(suite, stage, check.name)
        if not check.passed:
            Xml.SubElement(case, "failure", message=_clean(str(check)))
    for name in verdict.missing:
        message = "owed and not made"
        Xml.SubElement(_case(suite, stage, name), "error", message=message)
    if verdict.outcome in (Outcome.BLOCKED, Outcome.UNSUPPORTED):
        message = _clean(why(verdict))
        Xml.SubElement(_case(suite, stage, "outcome"), "skipped", message=message)
    elif verdict.outcome is Outcome.ERROR and not verdict.missing:
        message = _clean(why(verdict))
        Xml.SubElement(_case(suite, stage, "outcome"), "error", message=message)


def _case(suite: Xml.Element, stage: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=stage, name=_clean(name))


def _clean(text: str) -> str:
    return _NO_XML.sub("?", text)
