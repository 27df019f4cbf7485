from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import CONFIGS, check, compared, verdict
from trn_validate import plan
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.ladder import resolve
from trn_validate.verdict import Outcome, Verdict

EXAMPLES = 1000
"""Per property and kind of mutation: 2,000 plans and 2,000 verdicts."""

STABLE = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

LARGE = [1e308, 2**31, 2**63, 10**400]
NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 3, 4, 8, 64, 0.0, -0.0, 0.5, 1.0, -1.5, math.nan, math.inf, -math.inf, *LARGE]
)
ODD = ["", "a\nb", "\x00", "\u2028", "\ud800", "NaN", "Infinity", "1", "<=", "!="]
WORDS = ["passed", "failed", "text", "neuron", "cpu", "causal", "stock", "native", "moe"]
TEXTS = st.text(max_size=8) | st.sampled_from([*ODD, *WORDS])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=3,
)
OPERATIONS = st.sampled_from(
    ["nudge"] * 6 + ["delete", "replace", "retype", "rename", "duplicate", "add", "swap"]
)
Place = tuple[Any, Any]


def places(node: Any) -> Iterator[Place]:
    """Every container of a nested value with each of its keys or positions."""
    keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from places(node[key])


def retyped(value: Any) -> Any:
    """The same value as another type."""
    match value:
        case bool():
            return int(value)
        case int():
            return float(value) if abs(value) < 2**53 else str(value)[:20]
        case float():
            return str(value)
        case str():
            return [value]
        case list():
            return {str(position): entry for position, entry in enumerate(value)}
        case dict():
            return list(value.values())
    return "null"


def nudged(draw: st.DrawFn, value: Any) -> Any:
    """Another value of the same type, so that the shape of the whole stays."""
    match value:
        case bool():
            return not value
        case int():
            return draw(st.integers(0, 9) | st.sampled_from([16, 64, 100, 128, 2048, 2**40]))
        case float():
            return draw(st.floats(0, 1) | st.floats(allow_nan=False, allow_infinity=False))
        case str():
            return draw(st.sampled_from([*WORDS, *ODD]))
    return copy.deepcopy(value)


def mutate(draw: st.DrawFn, root: Any) -> None:
    """Change one place of a nested value."""
    found = list(places(root))
    if not found:
        return
    # A seed, since hypothesis itself would choose the first places far more often.
    chance = Random(draw(st.integers(0, 2**32)))
    (node, key), (other, other_key) = chance.choice(found), chance.choice(found)
    match draw(OPERATIONS):
        case "nudge":
            node[key] = nudged(draw, node[key])
        case "delete":
            del node[key]
        case "replace":
            node[key] = draw(VALUES)
        case "retype":
            node[key] = retyped(node[key])
        case "swap":
            node[key] = copy.deepcopy(other[other_key])
        case "duplicate" if isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        case "rename" if isinstance(node, dict):
            node[draw(TEXTS)] = node.pop(key)
        case _ if isinstance(node, dict):
            node[draw(TEXTS)] = draw(VALUES)
        case _:
            node.append(draw(VALUES))


@st.composite
def mutated_trees(draw: st.DrawFn, roots: list[Any]) -> Any:
    root = copy.deepcopy(draw(st.sampled_from(roots)))
    for _ in range(draw(st.integers(1, 4))):
        mutate(draw, root)
    return root


PIECES = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "'",
    "\n",
    "- ",
    "  ",
    "\t",
    "#",
    "&a ",
    "*a",
    "!!int ",
]
PIECES += [
    "!!bool ",
    "!!map ",
    "<<: ",
    "? ",
    "| ",
    "> ",
    "~",
    "1e999",
    ".nan",
    "\\UFFFFFFFF",
    "0x_",
]


@st.composite
def mutated_texts(draw: st.DrawFn, texts: list[str]) -> bytes:
    data = draw(st.sampled_from(texts)).encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        piece = draw(st.binary(max_size=4) | st.sampled_from(PIECES).map(str.encode))
        match draw(st.sampled_from(["cut", "insert", "replace", "double", "truncate"])):
            case "cut":
                data = data[:start] + data[end:]
            case "insert":
                data = data[:start] + piece + data[start:]
            case "replace":
                data = data[:start] + piece + data[end:]
            case "double":
                line = data.find(b"\n", start) + 1
                data = data[:line] + data[data.rfind(b"\n", 0, start) + 1 : line] + data[line:]
            case "truncate":
                data = data[:start]
    return data


CONFIG_TEXTS = [path.read_text(encoding="utf-8") for path in CONFIGS]
CONFIG_TREES = [yaml.safe_load(text) for text in CONFIG_TEXTS]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans") / "plan.yaml"


def wrong_with_reading(file: Path) -> str:
    """What a plan file does to whoever reads it that it may not do; empty if nothing."""
    try:
        found = plan.load(file)
    except UsageError as error:
        whole = len(str(error).splitlines()) == 1 and error.what.strip(" .") and error.where
        return "" if whole else f"no message of one line: {error}"
    for ladder in found.ladders:
        rungs = resolve(ladder)
        if len({rung.tokens_per_step for rung in rungs}) != 1:
            return f"{ladder.name} has rungs with other tokens per step"
        if any(rung.degrees.world_size > found.profile.cores for rung in rungs):
            return f"{ladder.name} has a rung with more ranks than cores"
    return ""


@STABLE
@given(tree=mutated_trees(CONFIG_TREES))
def test_a_plan_whose_keys_and_values_were_changed_is_read_or_refused_in_one_line(
    plan_file: Path, tree: Any
) -> None:
    # JSON is YAML but for these two words; where they are within a text, so be it.
    text = json.dumps(tree).replace("NaN", ".nan").replace("Infinity", ".inf")
    plan_file.write_text(text, encoding="utf-8")
    assert wrong_with_reading(plan_file) == ""


@STABLE
@given(data=mutated_texts(CONFIG_TEXTS))
def test_a_plan_whose_text_was_changed_is_read_or_refused_in_one_line(
    plan_file: Path, data: bytes
) -> None:
    plan_file.write_bytes(data)
    assert wrong_with_reading(plan_file) == ""


FAILED = check(name="loss falls", measured=0.01, comparator=">=", limit=0.02)
VERDICTS = [
    verdict(),
    verdict(checks=(check(), FAILED), expects=("loss is finite", "loss falls")),
    verdict(checks=(check(measured=math.nan),), measures={"loss": math.nan}),
    verdict(checks=(check(measured="cpu", comparator="==", limit="neuron"),)),
    verdict(expects=("loss is finite", "loss falls")),
    verdict(compared=(compared(candidate={"processes": ("101 of 1.00",)}),)),
    verdict(unmeasured=True),
    verdict(blocked_by="baseline.eager"),
    verdict(unsupported="absent"),
]
VERDICT_TEXTS = [made.to_json() for made in VERDICTS]
VERDICT_TREES = [json.loads(text) for text in VERDICT_TEXTS]


def number(value: Any) -> float | int | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if not isinstance(value, float) or math.isfinite(value) else None


def says_yes(made: dict[str, Any]) -> bool:
    """Whether a check holds, worked out from the file alone."""
    measured, limit, comparator = made["measured"], made["limit"], made["comparator"]
    if isinstance(measured, str) and isinstance(limit, str):
        finite = measured not in {"NaN", "Infinity", "-Infinity"}
        same = bool(measured == limit)
        return finite and (same if comparator == "==" else comparator == "!=" and not same)
    one, other = number(measured), number(limit)
    if one is None or other is None:
        return False
    sign = (one > other) - (one < other)
    return (
        sign
        in {
            "<=": (-1, 0),
            "<": (-1,),
            ">=": (0, 1),
            ">": (1,),
            "==": (0,),
            "!=": (-1, 1),
        }[comparator]
    )


def differ(pair: dict[str, Any]) -> bool:
    """Whether two things that were compared are two, worked out from the file alone."""
    one, other = pair["reference"], pair["candidate"]
    if (
        not one["processes"]
        or not other["processes"]
        or set(one["processes"]) & set(other["processes"])
    ):
        return False
    if pair["differ"] == "processes":
        return True
    if one["attempt"] == other["attempt"]:
        return False
    return pair["differ"] != "layout" or one["layout"] != other["layout"]


def numbers_say_passed(stated: dict[str, Any]) -> bool:
    """Whether a file's numbers, without its words, make a pass."""
    names = {made["name"] for made in stated["checks"]}
    return (
        stated["blocked_by"] is None
        and stated["unsupported"] is None
        and not stated["unmeasured"]
        and bool(stated["checks"])
        and bool(stated["expects"])
        and set(stated["expects"]) <= names
        and all(says_yes(made) for made in stated["checks"])
        and all(differ(pair) for pair in stated["compared"])
    )


def read_or_refused(text: str) -> Verdict | None:
    """The verdict of a file, or None where it is refused with one message."""
    try:
        return Verdict.from_json(text, where="x")
    except EvidenceError as error:
        assert error.what
        assert error.where == "x"
        return None


def sorted_text(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True)


def untrue(found: Verdict, text: str) -> list[str]:
    """What a verdict that was read says otherwise than the numbers of its file."""
    stated = json.loads(text)
    pairs = list(zip(found.checks, stated["checks"], strict=True))
    facts = {
        # As text, since a NaN is not equal to itself.
        "fields": sorted_text(json.loads(found.to_json())) == sorted_text(stated),
        "outcome": found.outcome == stated["outcome"],
        "a pass": (found.outcome is Outcome.PASSED) == numbers_say_passed(stated),
        "checks": all(c.passed is w["passed"] is says_yes(w) for c, w in pairs),
    }
    return [name for name, holds in facts.items() if not holds]


def claim(draw: st.DrawFn, tree: Any) -> None:
    """Write answers into a file that fit its numbers, or only claim to, as a forger would."""
    tree["outcome"] = draw(st.sampled_from(["passed", *map(str, Outcome)]))
    checks = tree.get("checks")
    for made in checks if isinstance(checks, list) else ():
        if isinstance(made, dict):
            made["passed"] = draw(st.sampled_from([True, False, True, False, 1, "true"]))


@st.composite
def mutated_verdicts(draw: st.DrawFn) -> str:
    tree = draw(mutated_trees(VERDICT_TREES))
    if isinstance(tree, dict) and draw(st.booleans()):
        claim(draw, tree)
    return json.dumps(tree)


@STABLE
@given(text=mutated_verdicts())
def test_a_verdict_whose_keys_and_values_were_changed_is_true_to_its_numbers_or_refused(
    text: str,
) -> None:
    found = read_or_refused(text)
    assert found is None or untrue(found, text) == []


@STABLE
@given(data=mutated_texts(VERDICT_TEXTS))
def test_a_verdict_whose_text_was_changed_is_true_to_its_numbers_or_refused(data: bytes) -> None:
    text = data.decode("utf-8", errors="surrogateescape")
    found = read_or_refused(text)
    assert found is None or untrue(found, text) == []


@pytest.mark.parametrize("made", VERDICTS, ids=lambda made: str(made.outcome))
def test_a_verdict_that_was_not_changed_is_read(made: Verdict) -> None:
    found = read_or_refused(made.to_json())
    assert found is not None
    assert found.outcome is made.outcome
    assert untrue(found, made.to_json()) == []


@STABLE
@given(
    measured=SCALARS,
    limit=SCALARS,
    comparator=st.sampled_from(["<=", "<", ">=", ">", "==", "!="]),
    passed=st.booleans(),
)
def test_a_forged_check_opens_no_gate_unless_its_numbers_do(
    measured: Any, limit: Any, comparator: str, passed: bool
) -> None:
    tree = copy.deepcopy(VERDICT_TREES[1])
    tree["checks"][1] |= {
        "measured": measured,
        "limit": limit,
        "comparator": comparator,
        "passed": passed,
    }
    tree["outcome"] = "passed" if passed else "failed"
    found = read_or_refused(json.dumps(tree))
    if found is not None and found.outcome is Outcome.PASSED:
        assert passed and says_yes(tree["checks"][1])
