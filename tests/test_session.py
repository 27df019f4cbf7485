from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests.builders import ROOT, load_plan
from tests.fake_training import ladder_plan
from trn_validate import session
from trn_validate.config import Plan
from trn_validate.errors import ConfigError, DeviceAbsent, EvidenceError, UsageError
from trn_validate.run import Run
from trn_validate.session import (
    choose_plan,
    continued,
    fingerprint_now,
    keep_plan,
    newest,
    plan_of,
    plan_text,
    start,
)
from trn_validate.store import Store
from trn_validate.target import HOST_ROOT

ENVIRONMENT = {"os": "debian 12", "torch": "2.14.1"}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "reports")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return ladder_plan(tmp_path)


def pci(root: Path, *devices: str) -> None:
    """PCI functions of these Amazon devices under a host root."""
    for number, device in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:00:{number:02x}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x1d0f\n")
        (folder / "device").write_text(f"{device}\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that shows nothing, until a test puts signs there."""
    root = tmp_path / "host"
    root.mkdir()
    monkeypatch.setenv(HOST_ROOT, str(root))
    return root


# Which plan


def test_a_host_without_signs_gets_the_cpu_plan(host: Path) -> None:
    chosen = choose_plan(None, "native", [])
    assert chosen.plan.target == "cpu"
    assert chosen.choice.signs.host_root == str(host)


def test_a_host_with_the_signs_of_a_trn2_gets_its_plan(host: Path) -> None:
    pci(host, *["0x7364"] * 16)
    assert choose_plan(None, "native", []).plan.target == "trn2.48xlarge"


def test_one_function_is_the_smaller_trn2(host: Path) -> None:
    pci(host, "0x7364")
    assert choose_plan(None, "native", []).plan.target == "trn2.3xlarge"


@pytest.mark.parametrize("devices", [["0x7264"], ["0x7164", "0x7364"]])
def test_another_chip_or_a_contradiction_is_refused_with_what_was_seen(
    host: Path, devices: list[str]
) -> None:
    pci(host, *devices)
    with pytest.raises(DeviceAbsent, match="Seen: PCI functions: 1 x"):
        choose_plan(None, "native", [])


def test_a_container_that_hides_the_device_is_no_cpu(host: Path) -> None:
    (host / "opt/aws/neuron/bin").mkdir(parents=True)
    with pytest.raises(DeviceAbsent, match="a container that hides the device looks so"):
        choose_plan(None, "native", [])


def test_a_plan_that_is_named_is_taken_whatever_the_host_shows(host: Path) -> None:
    pci(host, "0x7264")
    chosen = choose_plan(ROOT / "configs/cpu.yaml", "native", ["limits.loss_fall=0.5"])
    assert chosen.plan.target == "cpu"
    assert chosen.plan.limits.loss_fall == 0.5
    assert chosen.choice.target is None


def test_a_plan_of_this_folder_is_named_as_it_would_be_typed(
    host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    assert choose_plan(None, "native", []).plan.source == "configs/cpu.yaml"
    assert choose_plan(ROOT / "configs/cpu.yaml", "native", []).plan.source == "configs/cpu.yaml"
    monkeypatch.chdir(tmp_path)
    assert choose_plan(None, "native", []).plan.source == str(ROOT / "configs/cpu.yaml")


def test_a_path_that_the_plan_does_not_have_is_refused(host: Path) -> None:
    with pytest.raises(ConfigError, match="no path 'moe'"):
        choose_plan(None, "moe", [])


# Which run


def test_a_run_starts_with_its_plan_and_environment(store: Store, plan: Plan) -> None:
    run = start(store, plan, ENVIRONMENT)
    assert run.name.startswith("cpu.native.")
    assert yaml.safe_load((run.folder / "plan.yaml").read_text())["target"] == "cpu"
    assert json.loads((run.folder / session.ENVIRONMENT).read_text()) == ENVIRONMENT


def test_nothing_is_continued_where_there_is_no_run(store: Store, plan: Plan) -> None:
    assert continued(store, plan, ENVIRONMENT) == (None, "")
    assert not store.root.exists()


def test_the_newest_run_of_an_equal_environment_is_continued(store: Store, plan: Plan) -> None:
    start(store, plan, ENVIRONMENT)
    latest = start(store, plan, ENVIRONMENT)
    run, why = continued(store, plan, ENVIRONMENT)
    assert run is not None
    assert (run.name, why) == (latest.name, "")


def test_a_changed_environment_starts_a_new_run_and_says_what_changed(
    store: Store, plan: Plan
) -> None:
    before = start(store, plan, ENVIRONMENT)
    run, why = continued(store, plan, ENVIRONMENT | {"torch": "2.15.0"})
    assert run is None
    assert why == f"the environment changed since {before.name}: torch: 2.14.1 -> 2.15.0"


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_run_whose_environment_is_not_known_is_not_continued(
    store: Store, plan: Plan, text: str
) -> None:
    run = start(store, plan, ENVIRONMENT)
    (run.folder / session.ENVIRONMENT).write_text(text)
    assert continued(store, plan, ENVIRONMENT)[0] is None


def test_paths_in_the_environment_are_compared_as_they_are_kept(store: Store, plan: Plan) -> None:
    environment = ENVIRONMENT | {"$XLA_FLAGS": f"--dump={ROOT}/dumps"}
    run = start(store, plan, environment)
    assert str(ROOT) not in (run.folder / session.ENVIRONMENT).read_text()
    assert continued(store, plan, environment)[0] is not None


def test_another_path_of_the_same_target_is_another_run(store: Store, plan: Plan) -> None:
    start(store, plan, ENVIRONMENT)
    moe = plan.model_copy(update={"path": "moe"})
    assert continued(store, moe, ENVIRONMENT) == (None, "")
    with pytest.raises(UsageError, match=r"no run of cpu\.moe"):
        newest(store, moe)


def test_the_newest_run_of_any_plan_is_found(store: Store, plan: Plan) -> None:
    start(store, plan, ENVIRONMENT)
    later = datetime.now(UTC) + timedelta(minutes=1)
    latest = store.create("cpu", "moe", plan_text(plan), now=later)
    assert newest(store, None).name == latest.name
    assert newest(store, plan).path == "native"


def test_no_run_at_all_is_told_with_what_to_do(store: Store) -> None:
    with pytest.raises(UsageError, match="there is no run at all") as caught:
        newest(store, None)
    assert "make validate" in caught.value.todo


# The plan of a run


def test_the_plan_of_a_run_is_read_again_with_its_settings(store: Store, tmp_path: Path) -> None:
    plan = ladder_plan(tmp_path, "limits.loss_fall=0.5")
    assert plan_of(start(store, plan, ENVIRONMENT)) == plan


def test_a_plan_named_in_the_checkout_is_found_from_any_folder(
    store: Store, host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    plan = choose_plan(None, "native", []).plan
    run = start(store, plan, ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    found = plan_of(run)
    assert found.model_copy(update={"source": plan.source}) == plan


def test_a_plan_that_is_gone_is_told(store: Store, plan: Plan) -> None:
    run = start(store, plan, ENVIRONMENT)
    Path(plan.source).unlink()
    with pytest.raises(ConfigError, match="no such plan"):
        plan_of(run)


@pytest.mark.parametrize("text", ["", "[1]", "target: cpu", "a: [", "source: 5\npath: x"])
def test_a_plan_file_that_is_none_is_told(store: Store, plan: Plan, text: str) -> None:
    run = start(store, plan, ENVIRONMENT)
    for folder in (run.folder, run.private):
        (folder / "plan.yaml").write_text(text)
    with pytest.raises(ConfigError, match="not a plan of a run"):
        plan_of(run)


def test_a_run_without_its_plan_file_is_told(store: Store, plan: Plan) -> None:
    run = start(store, plan, ENVIRONMENT)
    for folder in (run.folder, run.private):
        (folder / "plan.yaml").unlink()
    with pytest.raises(EvidenceError, match="the run has no plan"):
        plan_of(run)


def kept(run: Run) -> list[str]:
    return sorted(path.name for path in run.folder.glob("plan*.yaml"))


def test_a_plan_that_did_not_change_is_not_written_again(store: Store, plan: Plan) -> None:
    run = start(store, plan, ENVIRONMENT)
    keep_plan(run, plan)
    assert kept(run) == ["plan.yaml"]


def test_the_plan_that_was_in_force_is_kept_beside_the_new_one(
    store: Store, tmp_path: Path
) -> None:
    plans = [ladder_plan(tmp_path, f"limits.loss_fall={fall}") for fall in (0.1, 0.2, 0.3)]
    run = start(store, plans[0], ENVIRONMENT)
    for one in plans[1:]:
        keep_plan(run, one)
    assert kept(run) == ["plan-1.yaml", "plan-2.yaml", "plan.yaml"]
    falls = [
        yaml.safe_load((run.folder / name).read_text())["limits"]["loss_fall"] for name in kept(run)
    ]
    assert falls == [0.1, 0.2, 0.3]
    assert plan_of(run) == plans[2]


def test_the_kept_plan_shows_every_value_and_no_folder_of_this_machine(
    store: Store, tmp_path: Path
) -> None:
    plan = load_plan(tmp_path)
    run = start(store, plan, ENVIRONMENT)
    keep_plan(run, plan.model_copy(update={"source": str(ROOT / "configs/cpu.yaml")}))
    shown = yaml.safe_load((run.folder / "plan.yaml").read_text())
    assert shown["source"] == "<repo>/configs/cpu.yaml"
    assert shown["timeouts"]["grace"] == 10.0
    assert plan_text(plan).isascii()


def test_the_fingerprint_names_the_host_root(host: Path) -> None:
    assert fingerprint_now()["host root"] == str(host)
