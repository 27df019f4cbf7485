from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trn_validate import yaml_file
from trn_validate.errors import ConfigError


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        yaml_file.parse(text, where="plan.yaml")
    message = str(caught.value)
    assert message.startswith("plan.yaml: ")
    assert len(message.splitlines()) == 1
    return message


def setting_refusal(raw: dict[str, Any], setting: str) -> str:
    with pytest.raises(ConfigError) as caught:
        yaml_file.override(raw, [setting])
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def ladders() -> dict[str, Any]:
    return {
        "target": "cpu",
        "ladders": [
            {"name": "debug", "rungs": [{"name": "baseline"}, {"name": "fsdp", "dp_shard": 2}]},
            {"name": "full", "rungs": []},
        ],
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-6", 5e-6),
        ("5.0e-6", 5e-6),
        ("1e3", 1000.0),
        ("-2E+1", -20.0),
        (".5e1", 5.0),
        ("600", 600),
        ("0.02", 0.02),
        ("e5", "e5"),
        ("'5e-6'", "5e-6"),
    ],
)
def test_numbers_with_an_exponent_are_numbers_as_in_yaml_1_2(text: str, value: object) -> None:
    found = yaml_file.parse(f"x: {text}", where="")["x"]
    assert found == value
    assert type(found) is type(value)


def test_a_key_given_twice_is_refused_with_its_place() -> None:
    message = refusal("target: cpu\nlimits: {}\ntarget: trn2.48xlarge\n")
    assert message == "plan.yaml: not YAML (key 'target' is given twice at line 3, column 1)."


def test_a_key_given_twice_in_a_section_of_a_list_is_refused() -> None:
    assert "key 'tp' is given twice at line 3" in refusal("rungs:\n  - tp: 2\n    tp: 4\n")


@pytest.mark.parametrize("key", ["1", "true", "null", "[a]", "{a: b}", "2020-01-01"])
def test_a_key_that_is_no_text_is_refused(key: str) -> None:
    message = refusal(f"? {key}\n: 1\n")
    assert "is not a text at line 1" in message


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "5", "~", "# nothing\n"])
def test_a_plan_that_is_no_mapping_is_refused_and_pointed_at_an_example(text: str) -> None:
    message = refusal(text)
    assert "a plan is a mapping of keys to values" in message
    assert "configs/cpu.yaml" in message


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "a:\n\t- 1", "'", "a: *nowhere", "%", "\x07"])
def test_text_that_is_not_yaml_is_refused_in_one_line(text: str) -> None:
    assert "not YAML (" in refusal(text)


def test_broken_yaml_is_refused_with_its_line_and_column() -> None:
    assert "at line 2, column 5" in refusal("a: 1\nb: c: d\n")


@pytest.mark.parametrize(
    "value",
    [
        "!!bool x",
        '!!int ""',
        '!!float ""',
        "!!timestamp x",
        "!!map [x]",
        "!!binary e",
        "!!python/object:os.system x",
        '"\\UFFFFFFFF"',
        '"\\U00110000"',
        "2020-13-45",
        "&x [*x]",
        "9" * 5000,
    ],
)
def test_values_that_pyyaml_cannot_make_are_refused_and_raise_nothing_else(value: str) -> None:
    assert "not YAML (" in refusal(f"a: {value}\n")


def test_nesting_without_end_is_refused() -> None:
    assert "not YAML (" in refusal("a: " + "[" * 5000)


def test_an_alias_is_refused_since_a_nest_of_them_grows_without_bound() -> None:
    assert "an alias" in refusal("a: &x {b: 1}\nc:\n  <<: *x\n")
    assert "line 2" in refusal("a: &x 1\nb: *x\n")


def test_a_merge_key_is_refused_since_it_would_hide_a_key_given_twice() -> None:
    assert "merge" in refusal("a:\n  <<: {b: 1}\n")


def test_a_missing_plan_is_refused_with_the_name_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "cpu.yaml").write_text("target: cpu\n")
    (tmp_path / "trn2.48xlarge.yaml").write_text("target: cpu\n")
    with pytest.raises(ConfigError) as caught:
        yaml_file.read(tmp_path / "trn2.48xlrge.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/trn2.48xlrge.yaml: no such plan. Did you mean {tmp_path}/trn2.48xlarge.yaml?"
    )


def test_a_missing_plan_that_is_like_no_other_is_refused_with_those_that_exist(
    tmp_path: Path,
) -> None:
    (tmp_path / "cpu.yaml").write_text("target: cpu\n")
    with pytest.raises(ConfigError, match=r"no such plan\. There are: cpu\.yaml\.$"):
        yaml_file.read(tmp_path / "zzzzzzzz")


@pytest.mark.parametrize("folder", [".", "missing"])
def test_a_missing_plan_in_a_folder_without_plans_says_so(tmp_path: Path, folder: str) -> None:
    with pytest.raises(ConfigError, match="The folder holds no plans"):
        yaml_file.read(tmp_path / folder / "cpu.yaml")


def test_a_plan_that_is_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the plan cannot be read"):
        yaml_file.read(tmp_path)


def test_a_plan_that_is_not_utf_8_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_bytes(b"target: \xff\n")
    with pytest.raises(ConfigError, match="the plan cannot be read"):
        yaml_file.read(tmp_path / "plan.yaml")


def test_a_path_with_a_nul_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="the plan cannot be read"):
        yaml_file.read(Path("a\0b"))


def test_a_setting_replaces_a_value_and_reads_it_as_yaml() -> None:
    raw: dict[str, Any] = {"limits": {"loss_fall": 0.02}, "accept": []}
    yaml_file.override(raw, ["limits.loss_fall=5e-6", "accept=[a, b]"])
    assert raw == {"limits": {"loss_fall": 5e-6}, "accept": ["a", "b"]}


def test_a_setting_names_the_entry_of_a_list_by_its_name() -> None:
    raw = ladders()
    yaml_file.override(raw, ["ladders.debug.rungs.fsdp.dp_shard=4"])
    assert raw["ladders"][0]["rungs"][1] == {"name": "fsdp", "dp_shard": 4}


def test_a_setting_names_the_entry_of_a_list_by_its_position() -> None:
    raw = ladders()
    yaml_file.override(raw, ["ladders.0.rungs.1.dp_shard=4", "ladders.1={name: other}"])
    assert raw["ladders"][0]["rungs"][1]["dp_shard"] == 4
    assert raw["ladders"][1] == {"name": "other"}


def test_a_setting_may_add_a_key_which_the_schema_then_judges() -> None:
    raw = ladders()
    yaml_file.override(raw, ["ladders.full.workload={steps: 6}"])
    assert raw["ladders"][1]["workload"] == {"steps": 6}


def test_later_settings_win_over_earlier_ones() -> None:
    raw = ladders()
    yaml_file.override(raw, ["target=a", "target=b"])
    assert raw["target"] == "b"


def test_a_setting_may_hold_an_equals_sign_in_its_value() -> None:
    raw = ladders()
    yaml_file.override(raw, ["target=a=b"])
    assert raw["target"] == "a=b"


def test_a_setting_without_a_value_is_null() -> None:
    raw = ladders()
    yaml_file.override(raw, ["target="])
    assert raw["target"] is None


@pytest.mark.parametrize("setting", ["target", "=5", ""])
def test_a_setting_without_key_or_equals_sign_is_refused(setting: str) -> None:
    assert setting_refusal(ladders(), setting) == f"--set {setting}: not of the form key=value."


def test_a_setting_through_a_key_that_is_not_there_says_which_was_meant() -> None:
    message = setting_refusal(ladders(), "lader.0.name=x")
    assert message == (
        "--set lader.0.name=x: the plan has no 'lader' there. Did you mean 'ladders'?"
    )


def test_a_setting_through_an_entry_that_is_not_there_names_those_that_are() -> None:
    message = setting_refusal(ladders(), "ladders.debug.rungs.zzz.tp=2")
    assert "the plan has no 'zzz' there. There are: baseline, fsdp." in message


@pytest.mark.parametrize("part", ["2", "-1", "01", "\u00b2", "9" * 5000])
def test_a_setting_with_a_position_outside_the_list_is_refused(part: str) -> None:
    assert "There are: debug, full." in setting_refusal(ladders(), f"ladders.{part}.name=x")


@pytest.mark.parametrize("setting", ["target.x=1", "target.x.y=1", "ladders.full.rungs.0.tp=1"])
def test_a_setting_into_a_value_that_holds_nothing_is_refused(setting: str) -> None:
    assert "There are: none." in setting_refusal(ladders(), setting)


def test_a_setting_whose_value_is_not_yaml_is_refused() -> None:
    assert "--set target=[: not YAML (" in setting_refusal(ladders(), "target=[")


def test_a_setting_with_a_line_break_is_quoted_in_its_refusal() -> None:
    assert "--set 'x.y=1\\n2'" in setting_refusal(ladders(), "x.y=1\n2")


def test_printable_text_stays_and_other_text_is_quoted() -> None:
    assert yaml_file.printable("configs/cpu.yaml") == "configs/cpu.yaml"
    assert yaml_file.printable("a\u2028b") == "'a\\u2028b'"
