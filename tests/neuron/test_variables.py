from __future__ import annotations

import pytest

from trn_validate.neuron.catalogue import VARIABLES
from trn_validate.neuron.variables import RULES, judge_variables, set_by_import

QUIET = {"NKI_ENABLE_TRACE_CACHE": "0"}


def names(**variables: str) -> list[str]:
    """Findings where launches are given these and an import changes none."""
    return [finding.id for finding in judge_variables(QUIET | variables, QUIET | variables)]


@pytest.mark.parametrize(
    ("name", "bad", "good", "finding"),
    [
        ("NEURON_RT_VISIBLE_CORES", "", None, "visible_cores_empty"),
        ("NEURON_RT_VISIBLE_CORES", "0-3", None, "visible_cores_set"),
        ("NEURON_RT_NUM_CORES", "64", None, "num_cores_set"),
        ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1", "0", "stochastic_rounding"),
        ("NEURON_CC_FLAGS", "-O1 --auto-cast=all", "-O1 --auto-cast=none", "cast_flags"),
        ("NEURON_CC_FLAGS", "--auto-cast-type bf16", "--lnc=2", "cast_flags"),
        (
            "NEURON_CC_FLAGS",
            "--implicit-integer-downcast=all",
            "--implicit-integer-downcast=none",
            "cast_flags",
        ),
        ("XLA_USE_BF16", "1", "0", "cast_flags"),
        ("XLA_DOWNCAST_BF16", "1", "0", "cast_flags"),
        ("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0", "1", "compile_fallback"),
        ("TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS", "0", "1", "eager_fallback"),
        ("NKI_ENABLE_TRACE_CACHE", "1", "0", "trace_cache"),
        ("NEURON_COMPILE_CACHE_URL", "/tmp/cache", None, "legacy_cache"),
        ("TORCH_DEVICE_BACKEND_AUTOLOAD", "True", "1", "autoload_off"),
        ("TORCH_DEVICE_BACKEND_AUTOLOAD", "", "1", "autoload_off"),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3", "trn2", "wrong_platform"),
        ("NKI_SIMULATOR", "1", "0", "simulator_on"),
        ("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "4", None, "variable_without_effect"),
    ],
)
def test_a_dangerous_value_is_a_finding_and_a_harmless_one_is_none(
    name: str, bad: str, good: str | None, finding: str
) -> None:
    assert names(**{name: bad}) == [finding]
    assert names(**({name: good} if good is not None else {})) == []


def test_every_finding_of_variables_has_a_rule_and_the_other_way_round() -> None:
    assert {rule.finding for rule in RULES} == {*VARIABLES}


def test_a_trace_cache_that_nobody_switched_off_is_a_finding() -> None:
    (finding,) = judge_variables({}, {})
    assert (finding.id, finding.what) == ("trace_cache", "NKI_ENABLE_TRACE_CACHE is not set")


def test_what_an_import_sets_is_judged_as_the_ranks_have_it() -> None:
    name = "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"
    (finding,) = judge_variables(QUIET, QUIET | {name: "0"})
    assert finding.id == "eager_fallback"
    assert judge_variables(QUIET | {name: "0"}, QUIET | {name: "1"}) == ()


def test_what_only_a_rank_has_is_no_fault_of_the_environment() -> None:
    assert judge_variables(QUIET, QUIET | {"NEURON_RT_VISIBLE_CORES": "3"}) == ()


def test_variables_that_an_import_set_or_changed_are_told() -> None:
    assert set_by_import({"A": "1", "B": "2"}, {"A": "1", "B": "3", "C": "4"}) == {
        "B": "3",
        "C": "4",
    }
