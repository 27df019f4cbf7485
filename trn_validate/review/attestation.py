"""attestation.json: an in-toto Statement v1 about the run, with a test result, and unsigned.

The subject is the manifest, so that one signature covers every file (in-toto/attestation,
spec/v1/statement.md and spec/predicates/test-result.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from trn_validate.evidence import evidence
from trn_validate.gate import Standing, first_closed
from trn_validate.review import manifest

NAME = manifest.ATTESTATION
STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"


def render(manifest_sha256: str, plan_sha256: str, standings: Sequence[Standing]) -> str:
    """The file's text.

    A rehearsal is at best WARNED: its stages passed, and it proves nothing of a Trn2.
    """
    real, _ = evidence({s.stage.id: s.verdict for s in standings if s.verdict is not None})
    opened = [s for s in standings if s.opens]
    warned = [s.stage.id for s in opened if s.verdict is not None and s.verdict.unsupported]
    result = "PASSED" if real and not warned else "WARNED"
    if first_closed(standings) is not None or not standings:
        result = "FAILED"
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": manifest.NAME, "digest": {"sha256": manifest_sha256}}],
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": result,
            "configuration": [{"name": "plan.yaml", "digest": {"sha256": plan_sha256}}],
            "passedTests": [s.stage.id for s in opened if s.stage.id not in warned],
            "warnedTests": warned,
            "failedTests": [s.stage.id for s in standings if not s.opens],
        },
    }
    return json.dumps(statement, indent=1) + "\n"
