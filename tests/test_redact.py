import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trn_validate import redact
from trn_validate.check import Check
from trn_validate.errors import EvidenceError
from trn_validate.redact import (
    HOME,
    REPO,
    RUN,
    Redactor,
    extend,
    host_names,
    own_names,
    redact_verdict,
)
from trn_validate.secret_text import without_secrets
from trn_validate.store import Store
from trn_validate.verdict import Command, Compared, Execution, Host, Problem, Thing, Verdict

HOME_PATH = "/home/alice"
REPO_PATH = "/home/alice/src/trn-validate"
RUN_PATH = f"{REPO_PATH}/reports/cpu.native.20261202T021530Z"
PRIVATE_PATH = f"{REPO_PATH}/reports/.private/cpu.native.20261202T021530Z"
HOSTS = {"node-0": ("alpha.example.org", "alpha"), "node-1": ("beta-7",)}
NAMES = {RUN: (RUN_PATH, PRIVATE_PATH), REPO: (REPO_PATH,), HOME: (HOME_PATH,), **HOSTS}
AWS_KEY = "AKIA" + "Q3EXAMPLE7KEY9AB"


@pytest.fixture
def redactor() -> Redactor:
    return Redactor(NAMES)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{RUN_PATH}/a.log", "<run>/a.log"),
        (f"{PRIVATE_PATH}/a.log", "<run>/a.log"),
        (f"{REPO_PATH}/stages/x.py", "<repo>/stages/x.py"),
        (f"-I{HOME_PATH}/include:{HOME_PATH}/lib", "-I<home>/include:<home>/lib"),
        (f"file://{HOME_PATH}/x", "file://<home>/x"),
        ("on alpha: ok", "on node-0: ok"),
        ("ALPHA.Example.org:29500", "node-0:29500"),
        ("The node 'alpha_1234_0' has failed", "The node 'node-0_1234_0' has failed"),
        ("beta-7/alpha", "node-1/node-0"),
        ("in JSON \\nalpha", "in JSON \\nnode-0"),
        ("alphabet, alpha-2, xalpha", "alphabet, alpha-2, xalpha"),
        ("nothing to hide", "nothing to hide"),
        ("", ""),
    ],
)
def test_the_longest_name_is_replaced_first(redactor: Redactor, before: str, after: str) -> None:
    assert redactor.text(before) == after
    assert redactor.text(after) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"key {AWS_KEY}.", "key <redacted>."),
        (f"ASIA{AWS_KEY[4:]}", "<redacted>"),
        ("aws_secret_access_key=wJalr/XUtn+FEMI", "aws_secret_access_key=<redacted>"),
        ("aws_secret_access_key = wJalr", "aws_secret_access_key = <redacted>"),
        ('"SecretAccessKey": "wJalr"', '"SecretAccessKey": "<redacted>"'),
        ("export HF_TOKEN=abc; make", "export HF_TOKEN=<redacted>; make"),
        ("MY_TOKEN='a b c' x", "MY_TOKEN='<redacted>' x"),
        ("{'GITHUB_TOKEN': 'abc', 'A': 1}", "{'GITHUB_TOKEN': '<redacted>', 'A': 1}"),
        ('{"HF_TOKEN":"abc","n":1}', '{"HF_TOKEN":"<redacted>","n":1}'),
        ('{\\"HF_TOKEN\\": \\"abc\\"}', '{\\"HF_TOKEN\\": \\"<redacted>\\"}'),
        ("DB_PASSWORD: hunter2", "DB_PASSWORD: <redacted>"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer <redacted>"),
        ('"authorization": "Basic abc=="', '"authorization": "Basic <redacted>"'),
        ("curl -H 'bearer abcdefgh12'", "curl -H 'bearer <redacted>'"),
        ("ghp_" + "a1B2" * 9, "<redacted>"),
        ("github_pat_" + "a1B2_" * 9, "<redacted>"),
        ("hf_" + "aBcD" * 8, "<redacted>"),
        ("https://bob:hunter2@pip.example.org/x", "https://<redacted>@pip.example.org/x"),
        ("instance i-0abc1234def567890 is up", "instance <redacted> is up"),
        ("i-1a2b3c4d", "<redacted>"),
        ("arn:aws:iam::123456789012:role/x", "arn:aws:iam::<redacted>:role/x"),
        ("ip-10-1-2-3.ec2.internal", "<redacted>.ec2.internal"),
    ],
)
def test_a_secret_is_replaced(redactor: Redactor, before: str, after: str) -> None:
    assert redactor.text(before) == after
    assert redactor.text(after) == after


@pytest.mark.parametrize(
    "text",
    [
        "tokens_per_step=1024, tokens: 512",
        "pad_token: 0, eos_token='<|im_end|>'",
        "hf_assets_path=tests/assets, hf_datasets",
        '{"hf_token": null, "use_auth_token": false, "password":null}',
        "multi-0abc1234def567890",
        "loss 1.234567890123 at step 123456789012",
        "torch 2.14.3.0, neuronx-cc 2.28.7631.0, 10.1.2.3",
        "sha256 " + "a1b2c3d4" * 8,
        "Bearer of bad news",
    ],
)
def test_what_only_looks_like_a_secret_stays(redactor: Redactor, text: str) -> None:
    assert redactor.text(text) == text


def test_json_stays_json_and_keeps_every_digit(redactor: Redactor) -> None:
    line = (
        '{"loss": 1.2345678901234567e-05, "nan": NaN, "big": 123456789012345678901, "a": 1,'
        f' "a": 2, "path": "{HOME_PATH}/x", "quoted": "\\"{RUN_PATH}\\" \\u00e4\\nalpha"}}'
    )
    found = redactor.json_text(line)
    assert '"loss": 1.2345678901234567e-05, "nan": NaN, "big": 123456789012345678901' in found
    assert '"a": 1, "a": 2, "path": "<home>/x"' in found
    assert json.loads(found)["quoted"] == '"<run>" \u00e4\nnode-0'


def test_a_path_that_json_writes_with_escapes_is_found() -> None:
    redactor = Redactor({HOME: ("/home/j\u00fcrgen",)})
    line = json.dumps({"path": "/home/j\u00fcrgen/x", "other": "\n"})
    assert json.loads(redactor.json_text(line))["path"] == "<home>/x"
    assert redactor.text(f"spec: {line}").startswith('spec: {"path": "<home>/x"')


def test_half_a_line_of_json_is_redacted_too(redactor: Redactor) -> None:
    assert redactor.json_text(f'{{"path": "a\\"{HOME_PATH}') == '{"path": "a\\"<home>'


def test_long_lines_without_a_break_take_no_long_time(redactor: Redactor) -> None:
    for piece in ("a", "A_TOKEN", '"', "\\", "i-0", "arn:aws:", "://x:", "bearer ", "hf_a"):
        text = piece * (1_000_000 // len(piece))
        start = time.monotonic()
        redactor.json_text(text)
        assert time.monotonic() - start < 5, piece


def test_keys_and_nested_values_are_redacted_and_none_is_lost(redactor: Redactor) -> None:
    structure = {
        "alpha": [{"path": (RUN_PATH,)}],
        "alpha.example.org": 1,
        "HF_TOKEN": "abc",
        "hf_token": None,
        "n": 1.5,
    }
    assert redactor.structure(structure) == {
        "node-0": [{"path": ["<run>"]}],
        "node-0 (2)": 1,
        "HF_TOKEN": "<redacted>",
        "hf_token": None,
        "n": 1.5,
    }


def test_a_model_is_redacted_as_its_dump(redactor: Redactor) -> None:
    problem = Problem(cause="crash", what=f"in {REPO_PATH}", excerpt="alpha died")
    found = redactor.structure(problem)
    assert (found["what"], found["excerpt"], found["rank"]) == ("in <repo>", "node-0 died", None)


def test_a_redactor_without_names_still_knows_secrets() -> None:
    assert Redactor({}).text(f"/home/x {AWS_KEY}") == "/home/x <redacted>"
    assert Redactor({HOME: ("",)}).text("abc") == "abc"


# which names


@pytest.mark.parametrize("host", ["localhost", "vm", "", "neuron", "cpu", "node-3", "Run"])
def test_a_host_name_that_tells_nothing_is_left(host: str) -> None:
    assert extend({}, {}, [[host]]) == {}


def test_a_host_is_known_by_its_short_name_too() -> None:
    assert extend({}, {}, [["Alpha.example.org"]]) == {"node-0": ("alpha.example.org", "alpha")}


def test_a_host_keeps_its_number_and_a_new_one_gets_the_next() -> None:
    first = extend({}, {}, [["alpha"], ["beta"]])
    again = extend(first, {}, [["beta"], ["gamma"], ["alpha", "alpha.lan"]])
    assert again == {"node-0": ("alpha", "alpha.lan"), "node-1": ("beta",), "node-2": ("gamma",)}


def test_two_domains_may_have_hosts_of_one_short_name() -> None:
    found = extend({}, {}, [["gpu.east.org"], ["gpu.west.org"]])
    assert Redactor(found).text("gpu.east.org gpu.west.org") == "node-0 node-1"


def test_the_root_as_home_is_not_replaced() -> None:
    assert extend({}, {HOME: [Path("/")]}, []) == {HOME: ()}


def test_a_home_behind_a_link_is_known_by_both_paths(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    found = extend({}, {HOME: [tmp_path / "link"]}, [])
    assert found == {HOME: (f"{tmp_path}/link", f"{tmp_path}/real")}


def test_a_resolver_that_does_not_answer_does_not_hold_up_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "alpha")
    monkeypatch.setattr(socket, "getfqdn", lambda: time.sleep(3))
    host_names.cache_clear()
    start = time.monotonic()
    assert host_names() == ("alpha",)
    assert time.monotonic() - start < 2
    host_names.cache_clear()


def test_the_resolver_is_not_asked_about_a_machine_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Alpha")
    monkeypatch.setattr(redact, "host_names", lambda: ("Alpha", "asked"))
    assert own_names({"node-0": ("alpha",)}) == ("Alpha",)
    assert own_names({HOME: ("alpha",), "node-0": ("beta",)}) == ("Alpha", "asked")


def test_the_map_is_kept_in_the_private_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trn_validate.redact.own_names", lambda _: ("alpha", "alpha.example.org"))
    monkeypatch.setenv("HOME", "/home/alice")
    store = Store(tmp_path / "reports", checkout=tmp_path)
    run = store.create("cpu", "native", "target: cpu\n")
    run.redactor([["beta"]])
    kept = json.loads((run.private / "redaction.json").read_text())
    assert kept["node-0"] == ["alpha", "alpha.example.org"]
    assert kept["node-1"] == ["beta"]
    assert kept["<home>"] == ["/home/alice"]
    assert not any("redaction" in path.name for path in run.folder.rglob("*"))
    monkeypatch.setattr("trn_validate.redact.own_names", lambda _: ("gamma",))
    later = Store(tmp_path / "reports", checkout=tmp_path).runs()[0].redactor()
    assert later.text("alpha beta gamma") == "node-0 node-1 node-2"


# verdicts


def verdict(**more: Any) -> Verdict:
    return Verdict(
        **{
            "stage": "environment.nodes",
            "path": "native",
            "run": "cpu.native.20261202T021530Z",
            "attempt": 1,
            "host": Host(root="/", target="cpu", reason="alpha has none", trn2_functions=0),
            "device": "cpu",
            "expects": ("nodes",),
            "checks": (
                Check(
                    name="nodes",
                    measured="alpha",
                    comparator="==",
                    limit="alpha",
                    source="config",
                    detail=f"{RUN_PATH}/a on beta-7",
                ),
                Check(name="loss", measured=1.5, comparator="<=", limit=2.0, source="config"),
            ),
            "started_at": "2026-12-02T02:15:30Z",
            "seconds": 1.0,
            "inputs_sha256": "0" * 64,
            **more,
        }
    )


def test_a_verdict_is_redacted_and_says_the_same(redactor: Redactor) -> None:
    before = verdict(
        facts={"alpha": HOME_PATH},
        commands=(
            Command(
                name="torchrun",
                argv=("--rdzv-endpoint=alpha:1", f"{REPO_PATH}/x.py"),
                exit_status=0,
                seconds=1.0,
                cause="completed",
            ),
        ),
        series={"loss": (1.0, float("nan"))},
        rerun=f"cd {REPO_PATH} && make rerun",
    )
    after = redact_verdict(before, redactor)
    assert after.outcome == before.outcome
    assert after.checks[0].measured == after.checks[0].limit == "node-0"
    assert after.checks[0].detail == "<run>/a on node-1"
    assert after.facts == {"node-0": "<home>"}
    assert after.commands[0].argv == ("--rdzv-endpoint=node-0:1", "<repo>/x.py")
    assert after.rerun == "cd <repo> && make rerun"
    assert after.host.reason == "node-0 has none"
    assert str(after.series["loss"]) == "(1.0, nan)"
    text = after.to_json()
    assert "alice" not in text and "alpha" not in text
    assert Verdict.from_json(text, where="x") == Verdict.from_json(after.to_json(), where="x")


def test_a_host_that_is_called_like_a_field_changes_no_identifier() -> None:
    redactor = Redactor({"node-0": ("cpu", "nodes", "torch", "1", "outcome", "stage", "layout")})
    pair = Compared(
        reference=Thing(name="nodes", attempt="nodes/1", processes=("1 of 1.00",), layout="cpu"),
        candidate=Thing(name="torch", attempt="nodes/2", processes=("2 of 1.00",), layout="torch"),
        differ="layout",
    )
    before = verdict(
        versions={"torch": "torch 1"},
        execution=Execution(distribution="torch 2.14"),
        compared=(pair,),
        builds_on={"stage.nodes": "1" * 64},
    )
    after = redact_verdict(before, redactor)
    for field in ("stage", "expects", "device", "versions", "execution", "compared", "builds_on"):
        assert getattr(after, field) == getattr(before, field)
    assert after.host.target == "cpu"
    assert [check.name for check in after.checks] == ["nodes", "loss"]


@pytest.mark.parametrize("comparator", ["==", "!="])
def test_a_check_that_redaction_would_turn_is_refused(redactor: Redactor, comparator: str) -> None:
    check = {"name": "nodes", "measured": AWS_KEY, "limit": f"ASIA{AWS_KEY[4:]}"}
    made = verdict(checks=(Check(**check, comparator=comparator, source="config"),))  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match="not written down"):
        redact_verdict(made, redactor)


# the property

_texts = st.lists(
    st.one_of(
        st.sampled_from([*(t for texts in NAMES.values() for t in texts), AWS_KEY, "HF_TOKEN="]),
        st.sampled_from(["/", "-", "_", ".", ":", '"', "\\", "\n", " ", "=", "<", "x", "7"]),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)
_structures = st.recursive(
    st.one_of(_texts, st.none(), st.integers(), st.floats(), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_texts, inner, max_size=3)
    ),
    max_leaves=10,
)
_HOST = re.compile(r"(?i)(?<![0-9a-z-])(?:alpha|beta-7)(?![0-9a-z-])")


def _every_text(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _every_text(part)]
    if isinstance(value, list):
        return [text for entry in value for text in _every_text(entry)]
    return []


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return sum(1 + _count(entry) for entry in value.values())
    return sum(1 + _count(entry) for entry in value) if isinstance(value, list) else 0


@settings(max_examples=500, deadline=None)
@given(_structures)
def test_no_name_is_left_in_any_structure(structure: Any) -> None:
    redactor = Redactor(NAMES)
    found = redactor.structure(structure)
    for text in _every_text(found):
        for path in (RUN_PATH, PRIVATE_PATH, REPO_PATH, HOME_PATH):
            assert path not in text
        assert not _HOST.search(text)
    assert _count(found) == _count(structure)
    assert repr(redactor.structure(found)) == repr(found)


@settings(max_examples=500, deadline=None)
@given(_structures, st.booleans(), st.sampled_from([None, 2]))
def test_no_name_is_left_in_any_json_and_it_stays_json(
    structure: Any, ascii_only: bool, indent: int | None
) -> None:
    redactor = Redactor(NAMES)
    line = json.dumps(structure, ensure_ascii=ascii_only, indent=indent)
    clear = json.loads(redactor.json_text(line))
    assert _count(clear) <= _count(structure)
    for text in _every_text(clear):
        assert HOME_PATH not in text and not _HOST.search(text)
    half = redactor.json_text(line[: len(line) // 2])
    assert HOME_PATH not in half and not _HOST.search(half.replace("\\n", " "))


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_text_without_names_or_secrets_is_left_as_it_is(text: str) -> None:
    if without_secrets(text) == text and "alpha" not in text.lower():
        assert Redactor(NAMES).text(text) == text
