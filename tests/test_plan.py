from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.builders import CONFIGS, ROOT, load_plan, plan_refusal, raw_ladder, raw_plan, write_plan
from trn_validate import plan
from trn_validate.config import (
    LadderSection,
    Model,
    NodeLimits,
    PathSection,
    Plan,
    PlanFile,
    Profile,
    Rung,
    Timeouts,
    Workload,
)
from trn_validate.errors import ConfigError
from trn_validate.flavors import FLAVORS, Shape
from trn_validate.ladder import resolve
from trn_validate.limits import Deviations, Limits
from trn_validate.spec import DataChoice

LADDER = "paths.native.ladders.debug"
SHAPE = json.dumps(
    FLAVORS["torchtitan.models.qwen3"]["debugmodel"].model_dump() | {"head": 4, "layers": 2}
)


def shipped(name: str) -> Plan:
    return plan.load(ROOT / "configs" / name)


def text_ladder(path: Path, **data: Any) -> dict[str, Any]:
    raw = raw_plan()
    raw["paths"]["native"]["ladders"][0]["workload"]["data"] = {
        "kind": "text",
        "path": str(path),
        **data,
    }
    return raw


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_config_parses_and_has_the_rungs_that_it_names(config: Path) -> None:
    raw = yaml.safe_load(config.read_text())
    assert f"{raw['target']}.yaml" == config.name
    for model_path, section in raw["paths"].items():
        found = plan.load(config, model_path=model_path)
        assert (found.target, found.path, found.source) == (raw["target"], model_path, str(config))
        on_one = [entry for entry in section["ladders"] if entry.get("nodes") in (None, 1)]
        assert [ladder.name for ladder in found.ladders] == [entry["name"] for entry in on_one]
        for ladder, entry in zip(found.ladders, on_one, strict=True):
            assert [rung.name for rung in ladder.rungs] == [r["name"] for r in entry["rungs"]]
            for rung, written in zip(resolve(ladder)[1:], entry["rungs"][1:], strict=True):
                assert rung.extends == written["extends"]
                assert rung.adds is not None
                assert written[rung.adds] == getattr(rung.degrees, rung.adds)


def test_a_plan_is_shipped_for_each_target_that_a_host_can_be() -> None:
    names = {path.stem for path in CONFIGS}
    assert names >= {"cpu", "trn2.3xlarge", "trn2.48xlarge"}


def test_the_last_rung_of_the_large_trn2_is_tp4_by_fsdp16_on_64_processes() -> None:
    found = shipped("trn2.48xlarge.yaml")
    last = resolve(found.ladders[-1])[-1]
    assert (last.degrees.tp, last.degrees.dp_shard, last.degrees.world_size) == (4, 16, 64)
    assert str(last.degrees) == "dp_shard16 x tp4"
    assert last.tokens_per_step == 131072
    assert last.local_batch_size == 2
    assert found.ladders[-1].model.flavor == "8B"
    assert found.profile.cores == 64


def test_the_full_model_of_the_large_trn2_starts_where_it_fits() -> None:
    first = resolve(shipped("trn2.48xlarge.yaml").ladders[-1])[0]
    assert (first.degrees.dp_shard, first.degrees.world_size, first.adds) == (16, 16, None)


def test_the_small_trn2_climbs_from_one_process_to_its_four_cores() -> None:
    rungs = resolve(shipped("trn2.3xlarge.yaml").ladders[0])
    assert [str(rung.degrees) for rung in rungs] == [
        "one process",
        "dp_shard2",
        "dp_shard2 x tp2",
        "dp_shard2 x cp2",
        "pp2",
    ]
    assert {rung.tokens_per_step for rung in rungs} == {8192}


def test_the_cpu_plan_trains_1024_tokens_per_step_in_every_rung() -> None:
    rungs = resolve(shipped("cpu.yaml").ladders[0])
    assert {rung.tokens_per_step for rung in rungs} == {1024}
    assert max(rung.degrees.world_size for rung in rungs) <= 4


def test_defaults_are_those_that_the_documentation_names(tmp_path: Path) -> None:
    found = load_plan(tmp_path)
    workload = found.ladders[0].workload
    assert workload.seed == 42
    assert workload.compute_dtype == "float32"
    assert workload.activation_checkpointing == "none"
    assert workload.spmd_backend == "spmd_types"
    assert workload.sequence_parallel is True
    assert workload.learning_rate == 8e-4
    assert workload.warmup_steps == 2
    assert workload.data.kind == "synthetic"
    timeouts = found.timeouts
    assert (timeouts.grace, timeouts.init, timeouts.train) == (10.0, 300, 100)
    assert found.accept_unsupported == ()


def test_settings_change_the_plan_and_are_kept_in_it(tmp_path: Path) -> None:
    chosen = (f"{LADDER}.workload.steps=8", f"{LADDER}.rungs.next.dp_shard=4")
    found = load_plan(tmp_path, *chosen)
    assert found.ladders[0].workload.steps == 8
    assert found.ladders[0].rungs[1].dp_shard == 4
    assert found.settings == chosen


def test_a_plan_survives_being_written_and_read_again(tmp_path: Path) -> None:
    found = load_plan(tmp_path)
    assert Plan.model_validate_json(found.model_dump_json()) == found


def test_an_unknown_key_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    error = plan_refusal(tmp_path, "limits.los_fall=1.0")
    assert error.what == "limits.los_fall: unknown key 'los_fall'"
    assert error.todo == "Did you mean 'loss_fall'?"
    assert error.where == str(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("setting", "place", "hint"),
    [
        ("targt=x", "targt", "target"),
        ("profile.core=4", "profile.core", "cores"),
        ("timeouts.silense=4", "timeouts.silense", "silence"),
        ("paths.native.laders=[]", "paths.native.laders", "ladders"),
        (f"{LADDER}.modell=4", "paths.native.ladders.0.modell", "model"),
        (f"{LADDER}.model.layer=4", "paths.native.ladders.0.model.layer", "layers"),
        (f"{LADDER}.model.shape={SHAPE}", "paths.native.ladders.0.model.shape.head", "heads"),
        (f"{LADDER}.workload.seqlen=4", "paths.native.ladders.0.workload.seqlen", "seq_len"),
        (f"{LADDER}.workload.data={{pth: x}}", "paths.native.ladders.0.workload.data.pth", "path"),
        (f"{LADDER}.rungs.next.extend=x", "paths.native.ladders.0.rungs.1.extend", "extends"),
    ],
)
def test_an_unknown_key_is_refused_in_every_section(
    tmp_path: Path, setting: str, place: str, hint: str
) -> None:
    error = plan_refusal(tmp_path, setting)
    key = place.rpartition(".")[2]
    assert error.what == f"{place}: unknown key {key!r}"
    assert error.todo == f"Did you mean {hint!r}?"


def test_an_unknown_key_that_is_like_no_other_is_refused_with_those_that_exist(
    tmp_path: Path,
) -> None:
    error = plan_refusal(tmp_path, "profile.zzzzz=1")
    assert error.todo.startswith("Known are: device, instance_type, devices, cores, ")


def test_several_problems_are_counted_and_the_first_is_shown(tmp_path: Path) -> None:
    error = plan_refusal(tmp_path, "profile.zzzzz=1", "limits.zzzzz=1")
    assert "(and 1 more)" in error.what


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("profile.cores='4'", "profile.cores: input should be a valid integer, not '4'"),
        ("profile.cores=true", "profile.cores: input should be a valid integer, not True"),
        ("profile.cores=0", "greater than or equal to 1, not 0"),
        ("profile.cores=2147483648", "less than or equal to 2147483647, not 2147483648"),
        ("profile.cores=4.5", "profile.cores: input should be a valid integer"),
        ("profile.device=cuda", "'cpu' or 'neuron', not 'cuda'"),
        ("profile.logical_nc_config=3", "1 or 2, not 3"),
        ("profile.memory_gib_per_core=0", "greater than 0, not 0"),
        ("limits.loss_fall=0", "greater than 0, not 0"),
        ("limits.loss_fall=x", "limits.loss_fall: input should be a valid number, not 'x'"),
        ("limits.loss_fall=1e999", "is no text, number, list or mapping"),
        ("limits.loss_fall=.nan", "is no text, number, list or mapping"),
        ("limits.factor=0.9", "greater than or equal to 1, not 0.9"),
        ("limits.factor=101", "less than or equal to 100, not 101"),
        ("limits.float32.loss_absolute=1e-6", "limits.float32.loss_absolute: input should be an"),
        ("limits.float32.loss_absolute.floor=0", "greater than 0, not 0"),
        ("limits.float32.loss_absolute.ceiling=-1", "greater than 0, not -1"),
        ("limits.bfloat16={}", "limits.bfloat16.loss_absolute: field required"),
        (f"{LADDER}.workload.captures=none", "'full' or 'sketch', not 'none'"),
        ("limits.rerun_loss_absolute=-1e-9", "greater than or equal to 0, not -1e-09"),
        ("timeouts.wall=0", "greater than 0, not 0"),
        ("timeouts.init=1.5", "timeouts.init: input should be a valid integer"),
        ("target=Trn2", "target: string should match pattern"),
        ("target=2020-01-01", "is no text, number, list or mapping"),
        ("accept_unsupported=kernels.nki", "accept_unsupported: input should be a valid"),
        (f"{LADDER}.name=A-B", "paths.native.ladders.0.name: string should match pattern"),
        (f"{LADDER}.rungs=[]", "paths.native.ladders.0.rungs: tuple should have at least 1 item"),
        (f"{LADDER}.rungs.next.tp=0", "greater than or equal to 1, not 0"),
        (f"{LADDER}.workload.steps=3", "greater than or equal to 4, not 3"),
        (f"{LADDER}.workload.seed=-1", "greater than or equal to 0, not -1"),
        (f"{LADDER}.workload.seed=2147483648", "less than or equal to 2147483647"),
        (f"{LADDER}.workload.attention=flash", "'dense_mask', 'causal' or 'stock', not 'flash'"),
        (f"{LADDER}.workload.compute_dtype=float16", "'float32' or 'bfloat16', not 'float16'"),
        ("paths.native.ladders=[]", "paths.native.ladders: tuple should have at least 1 item"),
        ("paths={}", "paths: dictionary should have at least 1 item"),
        ("paths.torch={ladders: []}", "'native', 'transformers' or 'moe'"),
        ("limits=", "limits: input should be an object, not None"),
        ("profile=[]", "profile: input should be an object, not []"),
    ],
)
def test_a_value_of_a_wrong_type_or_size_is_refused_with_what_it_is(
    tmp_path: Path, setting: str, what: str
) -> None:
    assert what in plan_refusal(tmp_path, setting).what


def required(model: type[BaseModel], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Path of every key that a section of :func:`raw_plan` has to have."""
    for name, field in model.model_fields.items():
        if field.is_required():
            yield (*place, name)
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from required(kind, (*place, name))
        elif get_origin(kind) in (dict, tuple):
            entry = next(a for a in reversed(get_args(kind)) if a is not Ellipsis)
            if isinstance(entry, type) and issubclass(entry, BaseModel):
                key = "native" if get_origin(kind) is dict else "0"
                yield from required(entry, (*place, name, key))


@pytest.mark.parametrize("path", sorted(required(PlanFile)), ids=".".join)
def test_a_key_that_has_no_default_is_refused_when_it_is_missing(
    tmp_path: Path, path: tuple[str, ...]
) -> None:
    raw: Any = raw_plan()
    node: Any = raw
    for part in path[:-1]:
        node = node[int(part) if part.isdigit() else part]
    del node[path[-1]]
    error = plan_refusal(tmp_path, raw=raw)
    assert error.what == f"{'.'.join(path)}: field required"
    assert "docs/plan.md" in error.todo


def test_a_key_with_a_line_break_is_quoted_in_its_refusal(tmp_path: Path) -> None:
    error = plan_refusal(tmp_path, raw=raw_plan() | {"a\nb": 1})
    assert error.what == "'a\\nb': unknown key 'a\\nb'"


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "cpu.yaml").read_text() + "\ntarget: cpu\n"
    assert "key 'target' is given twice" in plan_refusal(tmp_path, raw=text).what


def test_a_missing_plan_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"no such plan\. Did you mean .*configs/cpu\.yaml\?"):
        plan.load(ROOT / "configs" / "cpuu.yaml")


def test_a_path_that_the_plan_does_not_have_is_refused_with_those_that_it_has(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan(tmp_path, model_path="moe")
    assert "the plan has no path 'moe'. It has: native." in str(caught.value)


def test_only_the_ladders_of_the_path_that_is_asked_for_are_judged(tmp_path: Path) -> None:
    raw = raw_plan()
    broken = raw_ladder()
    broken["rungs"].append({"name": "none", "extends": "baseline"})
    raw["paths"]["moe"] = {"ladders": [broken]}
    assert load_plan(tmp_path, raw=raw).path == "native"
    with pytest.raises(ConfigError, match="path moe, ladder debug: rung none: adds no dimension"):
        load_plan(tmp_path, raw=raw, model_path="moe")


def test_the_digest_of_a_text_file_is_filled_in(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"to be or not to be")
    data = load_plan(tmp_path, raw=text_ladder(text)).ladders[0].workload.data
    assert data.sha256 == hashlib.sha256(b"to be or not to be").hexdigest()
    assert data.path == str(text)


def test_a_text_file_with_the_digest_that_the_plan_names_is_accepted(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"to be")
    digest = hashlib.sha256(b"to be").hexdigest()
    data = load_plan(tmp_path, raw=text_ladder(text, sha256=digest)).ladders[0].workload.data
    assert data.sha256 == digest


def test_a_text_file_with_another_digest_is_refused_with_both(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"to be")
    error = plan_refusal(tmp_path, raw=text_ladder(text, sha256="ab" * 32))
    assert error.where == str(text)
    assert hashlib.sha256(b"to be").hexdigest() in error.what
    assert "ab" * 32 in error.what


def test_text_without_a_path_is_refused(tmp_path: Path) -> None:
    error = plan_refusal(tmp_path, f"{LADDER}.workload.data={{kind: text}}")
    assert error.what == "ladder debug: data.kind is text, but data.path is missing"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.txt", "No such file or directory"),
        (".", "Is a directory"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_a_text_file_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    error = plan_refusal(tmp_path, raw=text_ladder(tmp_path / name))
    assert error.what == f"ladder debug: the text cannot be read ({reason})"


def test_a_plan_reads_no_text_file_while_its_data_are_synthetic(tmp_path: Path) -> None:
    data = "{kind: synthetic, path: missing.txt}"
    found = load_plan(tmp_path, f"{LADDER}.workload.data={data}")
    assert found.ladders[0].workload.data.sha256 is None


def test_parse_names_the_place_that_it_was_given() -> None:
    with pytest.raises(ConfigError, match=r"^somewhere: target: field required"):
        plan.parse({}, where="somewhere")


def test_reading_a_plan_changes_no_file(tmp_path: Path) -> None:
    path = write_plan(tmp_path, raw_plan())
    before = path.read_bytes()
    plan.load(path, settings=["timeouts.wall=5"])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


SECTIONS: dict[str, type[BaseModel]] = {
    "The file": PlanFile,
    "profile": Profile,
    "limits": Limits,
    "deviations": Deviations,
    "timeouts": Timeouts,
    "node_limits": NodeLimits,
    "paths": PathSection,
    "ladders": LadderSection,
    "model": Model,
    "model.shape": Shape,
    "workload": Workload,
    "workload.data": DataChoice,
    "rungs": Rung,
}
"""Section of docs/plan.md by its heading."""


def documented() -> dict[str, dict[str, str]]:
    """Default of each key in each table of docs/plan.md."""
    found: dict[str, dict[str, str]] = {}
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        rows = [line.split(" | ") for line in body.splitlines() if line.startswith("| `")]
        if rows:
            found[heading] = {row[0].strip("|` "): row[3] for row in rows}
    return found


def default(field: FieldInfo) -> str:
    """How docs/plan.md writes a default, but for what it adds in words."""
    if field.is_required():
        return "required"
    match field.default:
        case None:
            return "none"
        case ():
            return "empty"
        case bool():
            return str(field.default).lower()
        case NodeLimits():
            return "its defaults"
        case DataChoice():
            return field.default.kind
    return str(field.default)


def test_the_documentation_has_a_table_for_every_section_of_a_plan() -> None:
    assert list(documented()) == list(SECTIONS)


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_documentation_names_every_key_of_a_section_with_its_default(heading: str) -> None:
    rows = documented()[heading]
    fields = SECTIONS[heading].model_fields
    assert list(rows) == list(fields)
    for name, field in fields.items():
        assert re.match(rf"{re.escape(default(field))}\b", rows[name]), (name, rows[name])


def test_a_schedule_that_only_warms_up_is_refused_with_the_numbers(tmp_path: Path) -> None:
    ladder = "paths.native.ladders.debug.workload"
    refused = plan_refusal(tmp_path, f"{ladder}.warmup_steps=6")
    assert "warmup_steps 6 leaves none of the 6 steps after it" in str(refused)
