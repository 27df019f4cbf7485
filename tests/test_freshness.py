import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trn_validate.errors import MeasurementError, UsageError
from trn_validate.fingerprint import PACKAGES, VARIABLES, differences, fingerprint
from trn_validate.freshness import (
    Inputs,
    State,
    canonical,
    freshness,
    inputs,
    inputs_digest,
    judge,
    outside_digest,
)
from trn_validate.hashes import Hashes
from trn_validate.records import Step
from trn_validate.sources import ABSENT, code_version, folder_sources, module_sources
from trn_validate.spec import ModelChoice
from trn_validate.verdict import Artifact, Host, Verdict

REPO = Path(__file__).resolve().parent.parent
SHA = "5" * 64
BEFORE = {
    "plan_part": {"steps": 10, "flavor": "debug"},
    "code": SHA,
    "environment": {"torch": "2.14.1", "os": "debian 12"},
    "builds_on": {"environment.device": SHA},
    "external": {"model.module": SHA, "data": ABSENT},
}


def verdict(made: Inputs, artifacts: tuple[Artifact, ...] = ()) -> Verdict:
    return Verdict(
        stage="baseline.eager",
        path="native",
        run="cpu.native.20261202T021530Z",
        attempt=1,
        host=Host(root="/", target="cpu", reason="", trn2_functions=0),
        device="cpu",
        started_at="2026-12-02T02:15:30Z",
        seconds=1.0,
        artifacts=artifacts,
        builds_on=made.builds_on,
        inputs=made.parts,
        inputs_sha256=made.sha256,
    )


def now(**more: Any) -> Inputs:
    return inputs(**{**BEFORE, **more})


def whole(_: Artifact) -> bool:
    return True


# the canonical text


def test_the_canonical_text_has_sorted_keys_and_no_spaces() -> None:
    assert canonical({"b": [1, 1.5, None, True], "a": "\u00e4"}) == (
        '{"a":"\\u00e4","b":[1,1.5,null,true]}'
    )
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    assert canonical((1, 2)) == canonical([1, 2])
    assert canonical({"model": ModelChoice(module="m", flavor="f")}) == (
        '{"model":{"flavor":"f","layers":null,"module":"m","tied":null}}'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf], {"a": {"b": math.nan}}])
def test_a_number_that_is_not_finite_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(value)


def test_a_non_finite_number_inside_a_model_is_refused() -> None:
    step = Step(
        step=1,
        loss=math.nan,
        loss_here=True,
        grad_norm=1.0,
        learning_rate=1.0,
        tokens=1,
        rows="",
        row_count=1,
        shapes=(),
        seconds={},
        peak_memory_bytes=1,
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(step)


@pytest.mark.parametrize("value", [{1: 2}, {None: 1}, {"a": {2.0: 1}}, {1, 2}, b"x", Path("/")])
def test_what_json_would_confuse_or_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


_json = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False, width=32)
    ).filter(lambda v: not isinstance(v, float) or math.isfinite(v)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(_json, _json)
def test_different_values_have_different_canonical_texts(one: Any, two: Any) -> None:
    assert json.loads(canonical(one)) == one
    assert (canonical(one) == canonical(two)) == (
        json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    )


# judging


def test_a_verdict_of_the_same_inputs_is_fresh() -> None:
    assert judge(verdict(now()), now(), whole) == ""
    assert freshness(verdict(now()), now(), whole).fresh
    assert str(freshness(verdict(now()), now(), whole)) == "fresh"


def test_no_verdict_is_absent() -> None:
    found = freshness(None, now(), whole)
    assert found.state is State.ABSENT and not found.fresh and str(found) == "absent"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"plan_part": {"steps": 11, "flavor": "debug"}}, "plan"),
        ({"code": "6" * 64}, "code"),
        ({"environment": {"torch": "2.14.2", "os": "debian 12"}}, "environment"),
        ({"environment": {}}, "environment"),
        ({"builds_on": {"environment.device": "6" * 64}}, "verdict of environment.device"),
        ({"builds_on": {}}, "verdict of environment.device"),
        (
            {"builds_on": {"environment.device": SHA, "environment.imports": SHA}},
            "verdict of environment.imports",
        ),
        ({"external": {"model.module": "6" * 64, "data": ABSENT}}, "external model.module"),
        ({"external": {"model.module": SHA, "data": SHA}}, "external data"),
        ({"external": {"model.module": SHA}}, "external data"),
        ({"external": {**BEFORE["external"], "kernel": SHA}}, "external kernel"),  # type: ignore[dict-item]
    ],
)
def test_a_change_of_any_part_makes_stale_and_is_named(change: dict[str, Any], name: str) -> None:
    assert judge(verdict(now()), now(**change), whole) == f"changed: {name}"
    found = freshness(verdict(now()), now(**change), whole)
    assert found.state is State.STALE and not found.fresh
    assert str(found) == f"stale: changed: {name}"


def test_every_change_is_named() -> None:
    changed = now(code="6" * 64, builds_on={"environment.device": "6" * 64})
    assert judge(verdict(now()), changed, whole) == ("changed: code, verdict of environment.device")


def test_a_verdict_whose_digest_does_not_fit_its_parts_is_stale() -> None:
    edited = verdict(now()).model_copy(update={"inputs_sha256": SHA})
    assert "does not fit" in judge(edited, now(), whole)


def test_a_reader_of_the_verdict_alone_can_compute_the_digest() -> None:
    made = verdict(now())
    assert inputs_digest(made.inputs, made.builds_on) == made.inputs_sha256
    read = Verdict.from_json(made.to_json(), where="x")
    assert judge(read, now(), whole) == ""


def test_a_changed_artifact_makes_stale_and_is_named() -> None:
    artifacts = tuple(Artifact(path=name, sha256=SHA, bytes=1) for name in ("seed", "log"))
    made = verdict(now(), artifacts)
    assert judge(made, now(), whole) == ""
    reason = judge(made, now(), lambda artifact: artifact.path != "log")
    assert reason == "missing or changed: artifact log"


# the code


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("stages", "trn_validate"):
        shutil.copytree(REPO / name, folder / name, ignore=ignore)
    shutil.copy(REPO / "pipeline.py", folder)
    return folder


def changed(path: Path, text: str, answer: Callable[[], str]) -> bool:
    before, there = answer(), path.exists()
    saved = path.read_bytes() if there else b""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    after = answer()
    if there:
        path.write_bytes(saved)
    else:
        path.unlink()
    assert answer() == before
    return after != before


@pytest.mark.parametrize(
    "name",
    [
        "pipeline.py",
        "stages/__init__.py",
        "stages/new_stage.py",
        "trn_validate/verdict.py",
        "trn_validate/neuron/__init__.py",
        "trn_validate/neuron/releases.json",
        "trn_validate/kernels/new_kernel.py",
    ],
)
def test_an_edit_of_the_code_changes_its_version(copy: Path, name: str) -> None:
    assert changed(copy / name, "# x\n", lambda: code_version(copy))


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/plan.md",
        "tests/test_x.py",
        "configs/cpu.yaml",
        "trn_validate/review/__init__.py",
        "trn_validate/review/report.py",
        "trn_validate/__pycache__/verdict.cpython-311.py",
        "trn_validate/.hidden.py",
        "trn_validate/notes.md",
    ],
)
def test_an_edit_of_anything_else_does_not(copy: Path, name: str) -> None:
    assert not changed(copy / name, "# x\n", lambda: code_version(copy))


def test_a_renamed_file_or_a_moved_line_changes_the_version(copy: Path) -> None:
    before = code_version(copy)
    (copy / "stages/one.py").write_text("a\n")
    (copy / "stages/two.py").write_text("b\n")
    first = code_version(copy)
    (copy / "stages/one.py").write_text("a\nb\n")
    (copy / "stages/two.py").write_text("")
    second = code_version(copy)
    (copy / "stages/two.py").rename(copy / "stages/three.py")
    third = code_version(copy)
    (copy / "stages/one.py").unlink()
    (copy / "stages/three.py").unlink()
    assert len({before, first, second, third}) == 4
    assert code_version(copy) == before


def test_a_copy_of_the_checkout_has_the_same_version(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "elsewhere")
    assert code_version(tmp_path / "elsewhere") == code_version(copy)


def test_a_folder_that_is_no_checkout_has_no_version(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is missing"):
        code_version(tmp_path)


# modules by import path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site" / "outsider"
    (folder / "models" / "deep").mkdir(parents=True)
    (folder / "space" / "inner").mkdir(parents=True)
    loud = "raise RuntimeError('imported')\n"
    for name in ("__init__", "models/__init__", "models/deep/__init__", "models/deep/layers"):
        (folder / f"{name}.py").write_text(loud)
    (folder / "kernels.py").write_text(loud)
    (folder / "space/inner/module.py").write_text(loud)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield folder
    assert not [name for name in sys.modules if name.startswith("outsider")]


@pytest.mark.parametrize(
    ("import_path", "file"),
    [
        ("outsider", "kernels.py"),
        ("outsider.models", "models/deep/layers.py"),
        ("outsider.models.deep", "models/deep/layers.py"),
        ("outsider.models.deep", "models/deep/new.py"),
        ("outsider.models.deep.layers", "models/deep/layers.py"),
        ("outsider.kernels", "kernels.py"),
        ("outsider.kernels:softmax", "kernels.py"),
        ("outsider.kernels.softmax", "kernels.py"),
        ("outsider.space.inner", "space/inner/module.py"),
        ("outsider.space.inner.module", "space/inner/module.py"),
    ],
)
def test_an_edit_of_a_module_changes_its_digest_and_nothing_is_imported(
    package: Path, import_path: str, file: str
) -> None:
    assert module_sources(import_path) != ABSENT
    assert changed(package / file, "# x\n", lambda: module_sources(import_path))


def test_an_edit_beside_a_module_does_not_change_its_digest(package: Path) -> None:
    for file in ("__init__.py", "models/__init__.py", "kernels.py", "models/deep/notes.txt"):
        assert not changed(package / file, "# x\n", lambda: module_sources("outsider.models.deep"))


@pytest.mark.parametrize(
    "import_path",
    [
        "outsider.none",
        "outsider.models.none",
        "nowhere",
        "",
        "..",
        "../x",
        "a b",
        "sys",
        "/",
        "\u00e9.",
    ],
)
def test_a_module_that_is_not_there_is_absent(package: Path, import_path: str) -> None:
    assert module_sources(import_path) == ABSENT


def test_a_module_that_was_made_without_a_spec_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    assert module_sources("made_by_hand") == ABSENT


def test_a_folder_digest_leaves_out_what_is_hidden_or_installed(tmp_path: Path) -> None:
    assert folder_sources(tmp_path) == ABSENT
    (tmp_path / "a.py").write_text("")
    before = folder_sources(tmp_path)
    for name in (".venv/x.py", "env/pyvenv.cfg", "env/x.py", "__pycache__/x.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert folder_sources(tmp_path) == before
    (tmp_path / "b.py").write_text("")
    assert folder_sources(tmp_path) != before


# data and weights


def test_data_and_weights_have_a_digest_that_every_edit_changes(tmp_path: Path) -> None:
    remembered = Hashes(Path("/"), tmp_path / "hashes.json")
    weights = tmp_path / "weights"
    (weights / "deep").mkdir(parents=True)
    assert outside_digest(weights, remembered) == ABSENT
    assert outside_digest(weights / "none", remembered) == ABSENT
    blob = tmp_path / "blob"
    blob.write_bytes(b"one")
    (weights / "deep" / "model.safetensors").symlink_to(blob)
    first = outside_digest(weights, remembered)
    assert outside_digest(blob, remembered) != ABSENT
    blob.write_bytes(b"other")
    second = outside_digest(weights, remembered)
    (weights / "config.json").write_text("{}")
    third = outside_digest(weights, remembered)
    (weights / "config.json").rename(weights / "other.json")
    fourth = outside_digest(weights, remembered)
    assert len({first, second, third, fourth}) == 4
    assert outside_digest(weights, Hashes(Path("/"), tmp_path / "none.json")) == fourth


def test_weights_that_did_not_change_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"one")
    before = outside_digest(tmp_path / "weights", Hashes(Path("/"), tmp_path / "hashes.json"))
    monkeypatch.setattr("trn_validate.hashes.file_digest", lambda _: "0" * 64)
    again = Hashes(Path("/"), tmp_path / "hashes.json")
    assert outside_digest(tmp_path / "weights", again) == before


def test_what_is_no_file_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MeasurementError):
        outside_digest(tmp_path / "pipe", Hashes(Path("/"), tmp_path / "hashes.json"))


# the environment


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "sys/module/neuron").mkdir(parents=True)
    (tmp_path / "sys/module/neuron/version").write_text("2.31.7.0\n")
    (tmp_path / "dev").mkdir()
    for number in range(16):
        (tmp_path / f"dev/neuron{number}").touch()
    (tmp_path / "dev/neuron_x").touch()
    return tmp_path


def test_the_fingerprint_tells_system_packages_driver_and_devices(host: Path) -> None:
    found = fingerprint(host, environment={"NEURON_LOGICAL_NC_CONFIG": "1"})
    assert found["driver"] == "2.31.7.0"
    assert (found["devices"], found["lnc"]) == ("16", "1")
    assert found["python"].endswith(platform.python_version())
    assert platform.release() in found["kernel"]
    assert found["pydantic"] == metadata.version("pydantic")
    assert found["torch-neuronx"] == ABSENT
    assert set(PACKAGES) <= set(found)


def test_a_host_without_neuron_says_so(tmp_path: Path) -> None:
    found = fingerprint(tmp_path, environment={})
    assert (found["driver"], found["devices"], found["lnc"]) == ("absent", "0", "default")


@pytest.mark.parametrize("name", [*VARIABLES, "NEURON_LOGICAL_NC_CONFIG"])
def test_a_variable_that_changes_numbers_or_places_takes_part(host: Path, name: str) -> None:
    assert fingerprint(host, environment={}) != fingerprint(host, environment={name: "3"})


@pytest.mark.parametrize(
    "name", ["HF_HOME", "HOSTNAME", "PWD", "TORCH_LOGS", "NEURON_RT_LOG_LEVEL", "HF_TOKEN"]
)
def test_any_other_variable_does_not(host: Path, name: str) -> None:
    assert fingerprint(host, environment={}) == fingerprint(host, environment={name: "3"})


def test_a_second_look_gives_the_same_and_imports_nothing() -> None:
    first, before = fingerprint(), set(sys.modules)
    assert fingerprint() == first
    assert set(sys.modules) == before


def test_differences_are_told_by_name(host: Path) -> None:
    before = fingerprint(host, environment={})
    (host / "sys/module/neuron/version").write_text("2.32.0.0\n")
    (host / "dev/neuron0").unlink()
    after = fingerprint(host, environment={"XLA_FLAGS": "x"})
    assert differences(before, after) == (
        "$XLA_FLAGS: absent -> x",
        "devices: 16 -> 15",
        "driver: 2.31.7.0 -> 2.32.0.0",
    )
    assert differences(before, before) == ()


def install(site: Path, name: str, folder: Path, *, editable: bool, top_level: str = "") -> None:
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    origin = {"url": f"file://{folder}", "dir_info": {"editable": editable}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    if top_level:
        (info / "top_level.txt").write_text(f"{top_level}\n")


@pytest.mark.parametrize("top_level", ["outsider", ""])
def test_an_edit_of_an_editable_package_takes_part(package: Path, top_level: str) -> None:
    name = "outsider" if top_level else "other-name"
    install(package.parent, name, package, editable=True, top_level=top_level)

    def answer() -> str:
        return canonical(fingerprint(packages=[name], environment={}))

    assert f'"{name}":"1.0"' in answer()
    assert changed(package / "models/deep/layers.py", "# x\n", answer)


def test_an_installed_package_is_told_by_its_version_alone(package: Path) -> None:
    install(package.parent, "outsider", package, editable=False, top_level="outsider")
    found = fingerprint(packages=["outsider"], environment={})
    assert found["outsider"] == "1.0" and "outsider sources" not in found


def test_a_checkout_on_the_path_is_told_by_its_sources(package: Path) -> None:
    found = fingerprint(packages=["outsider"], environment={})
    assert found["outsider"] == ABSENT
    assert found["outsider sources"] == module_sources("outsider")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"dir_info": {"editable": true}}', '{"url": 1}'])
def test_a_spoilt_record_of_an_install_is_no_editable_one(package: Path, text: str) -> None:
    install(package.parent, "outsider", package, editable=False)
    (package.parent / "outsider-1.0.dist-info/direct_url.json").write_text(text)
    assert fingerprint(packages=["outsider"], environment={})["outsider"] == "1.0"
