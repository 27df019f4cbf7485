"""The imitated host, asked by the very code that asks a Trn2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_neuron_rehearsal import layout, tools
from torch_neuron_rehearsal.activity import Activity, add, alive, started
from torch_neuron_rehearsal.host import build
from torch_neuron_rehearsal.layout import INSTANCES

from tests.builders import ROOT
from trn_validate import plan as plans
from trn_validate.neuron.compare import device_checks
from trn_validate.neuron.counters import snapshot
from trn_validate.neuron.finding import errors
from trn_validate.neuron.host import HostFacts, read_host
from trn_validate.neuron.tools import Tools
from trn_validate.neuron.watch import Watch
from trn_validate.target import choose, read_signs

SMALL = "trn2.3xlarge"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build(tmp_path / "host", INSTANCES[SMALL])
    return tmp_path / "host"


@pytest.fixture
def sleeper() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    yield child.pid
    child.kill()
    child.wait()


def facts(root: Path) -> HostFacts:
    return read_host(root, Tools(root).ask, {})


@pytest.mark.parametrize("kind", sorted(INSTANCES))
def test_a_host_is_what_it_imitates_and_nothing_is_wrong_with_it(tmp_path: Path, kind: str) -> None:
    build(tmp_path, INSTANCES[kind])
    signs = read_signs(tmp_path)
    profile = plans.load(ROOT / f"configs/{kind}.yaml").profile
    checks, told = device_checks(facts(tmp_path), profile, signs)
    assert choose(signs).target == kind
    assert [str(check) for check in checks if not check.passed] == []
    assert errors(told) == ()
    assert facts(tmp_path).driver.loaded == layout.DRIVER


def test_the_rehearsal_s_plan_asks_for_the_host_that_make_rehearse_builds(root: Path) -> None:
    profile = plans.load(ROOT / "configs/rehearsal.yaml").profile
    checks, _ = device_checks(facts(root), profile, read_signs(root))
    assert [str(check) for check in checks if not check.passed] == []


def test_a_folder_that_holds_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="no host of a rehearsal"):
        build(tmp_path, INSTANCES[SMALL])
    assert (tmp_path / "mine").exists()


def test_a_busy_core_is_told_with_its_process(
    root: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_REHEARSAL_BUSY", str(sleeper))
    found = facts(root)
    (holder,) = found.holders
    assert (holder.pid, holder.devices) == (sleeper, (0,))
    profile = plans.load(ROOT / "configs/rehearsal.yaml").profile
    checks, _ = device_checks(found, profile, read_signs(root))
    (failed,) = (check for check in checks if not check.passed)
    assert failed.name == "cores held by other processes"
    assert f"pid {sleeper}" in failed.detail


def test_the_counters_grow_by_what_was_executed_and_by_nothing_else(root: Path) -> None:
    executed = [0, 0, 0, 0]
    activity = Activity(root, lambda: executed, lambda: True)
    before = snapshot(root)
    assert before is not None
    activity.publish()
    assert snapshot(root) == before
    executed[1] = 5
    activity.publish()
    executed[:] = [0, 7, 0, 2]
    activity.publish()
    activity.publish()
    after = snapshot(root)
    assert after is not None
    assert after.successes - before.successes == 9
    grown = {k: n for k, n in after.counts.items() if n != before.counts[k]}
    assert grown == {"0.2.success": 7, "0.6.success": 2}


def test_two_processes_lose_no_count(root: Path) -> None:
    file = layout.counter(root, 0, "success")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'rehearsal')!r})\n"
        "from pathlib import Path\n"
        "from torch_neuron_rehearsal.activity import add\n"
        f"for _ in range(300): add(Path({str(file)!r}), 1)"
    )
    children = [subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) for _ in range(2)]
    for _ in range(100):
        add(file, 1)
    assert [child.wait() for child in children] == [0, 0]
    assert int(file.read_text()) == 700


def test_who_uses_the_device_is_listed_until_it_ends(root: Path) -> None:
    activity = Activity(root, lambda: [0, 3, 0, 0], lambda: True)
    activity.publish()
    (holder,) = facts(root).holders
    assert (holder.pid, holder.devices, holder.visible) == (os.getpid(), (0,), True)
    activity.end()
    assert facts(root).holders == ()


def test_a_process_that_was_killed_holds_nothing(root: Path, sleeper: int) -> None:
    file = layout.processes(root) / f"{sleeper}.json"
    told = {"pid": sleeper, "started": started(sleeper), "cores": {"0": 1}}
    file.write_text(json.dumps(told))
    assert [one["pid"] for one in alive(root)] == [sleeper]
    # Another process of the same number was started at another time.
    file.write_text(json.dumps({**told, "started": "1"}))
    assert alive(root) == []
    assert not file.exists()


def test_neuron_monitor_s_records_are_of_each_process_and_period(root: Path) -> None:
    executed = [4, 0, 0, 0]
    activity = Activity(root, lambda: executed, lambda: True)
    with Watch(root) as watch:
        activity.publish()
        until = time.monotonic() + 30
        while os.getpid() not in watch.stream.tallies and time.monotonic() < until:
            time.sleep(0.05)
        executed[0] = 10
        activity.publish()
        while (
            watch.stream.tallies[os.getpid()].executions["completed"] < 10
            and time.monotonic() < until
        ):
            time.sleep(0.05)
    by_driver, by_monitor = watch.ran([os.getpid()])
    assert (by_driver.source, by_driver.after - by_driver.before) == ("sysfs", 10)
    assert (by_monitor.source, by_monitor.after) == ("neuron-monitor", 10)
    activity.end()


def test_a_record_tells_what_came_since_the_one_before(root: Path) -> None:
    record = tools.record(root, {7: 10}, {7: 25, 8: 3})
    done = {
        one["pid"]: one["report"]["execution_stats"]["execution_summary"]["completed"]
        for one in record["neuron_runtime_data"]
    }
    assert done == {7: 15, 8: 3}
