"""Environment variables that change numbers, or where they are computed.

What a package sets while it is imported counts too, so both states are judged: what the launches
are given, and what a rank has after ``import torch``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trn_validate.neuron.finding import Finding, found

ON = frozenset({"1", "true", "yes", "on"})
OFF = frozenset({"0", "false", "no", "off"})

_CASTS = re.compile(
    r"--(?:auto-cast|implicit-integer-downcast)[= ](?!none\b)\S+|--auto-cast-type\b\S*"
)
"""Flags of neuronx-cc that compute in another dtype than the program says."""


class Rule(NamedTuple):
    """When a variable is a finding."""

    variable: str
    finding: str
    bad: Callable[[str], bool]
    given: bool = True
    """Judged as the launches are given it; otherwise as it is after ``import torch``."""
    unset: bool = False
    """Whether it is one too where nothing sets it."""


def _on(value: str) -> bool:
    return value.lower() in ON


def _off(value: str) -> bool:
    return value.lower() in OFF


def _any(value: str) -> bool:
    return True


RULES = (
    Rule("NEURON_RT_VISIBLE_CORES", "visible_cores_empty", lambda value: not value),
    Rule("NEURON_RT_VISIBLE_CORES", "visible_cores_set", bool),
    Rule("NEURON_RT_NUM_CORES", "num_cores_set", _any),
    Rule("NEURON_RT_STOCHASTIC_ROUNDING_EN", "stochastic_rounding", _on, given=False),
    Rule("NEURON_CC_FLAGS", "cast_flags", lambda v: bool(_CASTS.search(v)), given=False),
    Rule("XLA_USE_BF16", "cast_flags", _on),
    Rule("XLA_DOWNCAST_BF16", "cast_flags", _on),
    Rule("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "compile_fallback", _off, given=False),
    Rule("TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS", "eager_fallback", _off, given=False),
    Rule("NKI_ENABLE_TRACE_CACHE", "trace_cache", lambda v: not _off(v), unset=True),
    Rule("NEURON_COMPILE_CACHE_URL", "legacy_cache", _any),
    Rule("TORCH_DEVICE_BACKEND_AUTOLOAD", "autoload_off", lambda value: value != "1"),
    Rule("NEURON_PLATFORM_TARGET_OVERRIDE", "wrong_platform", lambda v: v.lower() != "trn2"),
    Rule("NKI_SIMULATOR", "simulator_on", _on),
    Rule("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "variable_without_effect", _any),
)


def judge_variables(given: Mapping[str, str], after: Mapping[str, str]) -> tuple[Finding, ...]:
    """Say which variables are dangerous; ``after`` is what an import of torch left."""
    told = []
    for rule in RULES:
        values = given if rule.given else after
        value = values.get(rule.variable)
        if value is None and not rule.unset:
            continue
        if rule.bad(value or ""):
            shown = "is not set" if value is None else f"is {value!r}"
            told.append(found(rule.finding, f"{rule.variable} {shown}", "the environment"))
    return tuple(told)


def set_by_import(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Variables that an import set or changed, with their values after it."""
    return {name: value for name, value in after.items() if before.get(name) != value}
