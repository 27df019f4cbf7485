from __future__ import annotations

from typing import Any

import pytest

from tests.builders import check, host, verdict
from trn_validate.evidence import evidence
from trn_validate.verdict import Execution, Verdict

NEURONX = "torch-neuronx 2.9.0"


def run() -> dict[str, Verdict]:
    """Verdicts of a run that is evidence."""
    return {
        "environment.device": verdict(stage="environment.device", device="none", execution=None),
        "environment.imports": verdict(stage="environment.imports"),
        "environment.nodes": verdict(stage="environment.nodes", device="none", execution=None),
        "baseline.eager": verdict(stage="baseline.eager"),
        "parallelism.fsdp": verdict(),
    }


def changed(stage: str, **changes: Any) -> tuple[bool, str]:
    """What a run is in which one verdict is another."""
    verdicts = run()
    verdicts[stage] = verdict(
        **{name: getattr(verdicts[stage], name) for name in ("stage", "device", "execution")}
        | changes
    )
    return evidence(verdicts)


def test_a_run_with_every_condition_is_evidence() -> None:
    assert evidence(run()) == (True, "")


def test_the_trn2_of_another_name_is_one_too() -> None:
    verdicts = {
        stage: made.model_copy(update={"host": host(target="trn2.3xlarge")})
        for stage, made in run().items()
    }
    assert evidence(verdicts) == (True, "")


@pytest.mark.parametrize("stage", ["environment.device", "environment.imports"])
def test_a_run_without_one_of_the_two_first_stages_is_no_evidence(stage: str) -> None:
    verdicts = run()
    del verdicts[stage]
    assert evidence(verdicts) == (
        False,
        "environment.device and environment.imports are not both there",
    )


def test_no_verdicts_are_no_evidence() -> None:
    assert evidence({})[0] is False


@pytest.mark.parametrize("stage", list(run()))
def test_a_host_read_under_another_root_in_any_stage_is_no_evidence(stage: str) -> None:
    assert changed(stage, host=host(root="/tmp/host")) == (
        False,
        f"{stage}: the host was read under /tmp/host",
    )


@pytest.mark.parametrize("stage", list(run()))
@pytest.mark.parametrize("target", ["cpu", "rehearsal", "trn1.32xlarge", "xtrn2.3xlarge", "trn2"])
def test_another_target_in_any_stage_is_no_evidence(stage: str, target: str) -> None:
    assert changed(stage, host=host(target=target)) == (False, f"the target is {target}")


@pytest.mark.parametrize("stage", list(run()))
def test_a_hook_of_the_test_suite_in_any_stage_is_no_evidence(stage: str) -> None:
    assert changed(stage, hooks=("tests.defects:halve",)) == (
        False,
        f"{stage}: hooks of the test suite were active",
    )


def test_a_device_stage_that_saw_no_pci_function_is_no_evidence() -> None:
    assert changed("environment.device", host=host(trn2_functions=0)) == (
        False,
        "environment.device saw no PCI function of a Trn2",
    )


@pytest.mark.parametrize(
    "execution",
    [
        None,
        Execution(distribution="", before=3, after=40),
        Execution(distribution="torch 2.14.1", before=3, after=40),
        Execution(distribution="torch-neuronx-rehearsal 1", before=3, after=40),
        Execution(distribution="torch-neuronx", before=3, after=40),
    ],
    ids=["nothing", "no name", "torch", "another name", "no version"],
)
def test_another_distribution_that_executed_is_no_evidence(execution: Execution | None) -> None:
    assert changed("environment.imports", execution=execution) == (
        False,
        "environment.imports did not find torch-neuronx executing",
    )


@pytest.mark.parametrize("stage", ["environment.imports", "baseline.eager", "parallelism.fsdp"])
@pytest.mark.parametrize(
    "execution",
    [
        Execution(distribution=NEURONX),
        Execution(distribution=NEURONX, before=3),
        Execution(distribution=NEURONX, after=3),
        Execution(distribution=NEURONX, before=3, after=3),
        Execution(distribution=NEURONX, before=3, after=2),
    ],
    ids=["no count", "no count after", "no count before", "the same count", "a smaller count"],
)
def test_a_count_of_executions_that_did_not_grow_is_no_evidence(
    stage: str, execution: Execution
) -> None:
    assert changed(stage, execution=execution) == (
        False,
        f"{stage}: the count of executions on the device did not grow",
    )


def test_a_stage_on_the_device_without_any_count_is_no_evidence() -> None:
    assert changed("baseline.eager", execution=None) == (
        False,
        "baseline.eager: the count of executions on the device did not grow",
    )


def test_a_failed_run_on_a_trn2_is_evidence_of_its_failure() -> None:
    assert changed("baseline.eager", checks=(check(measured=2.0),)) == (True, "")
