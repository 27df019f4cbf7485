"""Whether a run is evidence: computed from its verdicts, never set."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trn_validate.verdict import Execution, Host, Verdict

VENDOR = "torch-neuronx "
"""How the distribution begins whose device is a Trainium; another one's is a rehearsal."""

_TRN2 = re.compile(r"^trn2u?\.")


def evidence(verdicts: Mapping[str, Verdict]) -> tuple[bool, str]:
    """Whether a run is evidence, and the reason if it is not.

    Computed from the verdicts alone: host root / and a Trn2 target throughout, PCI
    functions seen by environment.device, torch-neuronx found executing by
    environment.imports, and a count of executions that grew in every stage that
    launched on the device.
    """
    device, imports = verdicts.get("environment.device"), verdicts.get("environment.imports")
    if device is None or imports is None:
        return False, "environment.device and environment.imports are not both there"
    for stage, verdict in verdicts.items():
        if verdict.host.root != "/":
            return False, f"{stage}: the host was read under {verdict.host.root}"
        if not _TRN2.match(verdict.host.target):
            return False, f"the target is {verdict.host.target}"
        if verdict.hooks:
            return False, f"{stage}: hooks of the test suite were active"
    if device.host.trn2_functions < 1:
        return False, "environment.device saw no PCI function of a Trn2"
    if imports.execution is None or not imports.execution.distribution.startswith(VENDOR):
        return False, "environment.imports did not find torch-neuronx executing"
    for stage, verdict in verdicts.items():
        if verdict.device != "none" and not _grew(verdict.execution):
            return False, f"{stage}: the count of executions on the device did not grow"
    return True, ""


def is_trn2(host: Host) -> bool:
    """Whether a verdict was made for a Trn2 and under the host root /; it may be a wrong one."""
    return host.root == "/" and _TRN2.match(host.target) is not None


def _grew(execution: Execution | None) -> bool:
    return (
        execution is not None
        and execution.before is not None
        and execution.after is not None
        and execution.after > execution.before
    )
