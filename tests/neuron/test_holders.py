from __future__ import annotations

from typing import Any

from tests.neuron.machine import Machine, put, recorded
from trn_validate.neuron.holders import Holder, holders, judge_holders
from trn_validate.neuron.neuron_ls import list_devices

COMMAND = "python3 -m torchtitan.train --module qwe..."


def held(machine: Machine) -> tuple[Holder, ...]:
    return holders(list_devices(machine.ask).value, machine.root)


def test_a_machine_where_nothing_runs_has_no_holder(machine: Machine) -> None:
    assert held(machine) == ()


def test_a_process_that_only_neuron_ls_sees_is_in_another_container(machine: Machine) -> None:
    machine.says("neuron-ls -j", recorded("neuron-ls.trn2.48xlarge.busy.json"))
    (one,) = held(machine)
    assert one == Holder(pid=113985, command=COMMAND, devices=(0, 1, 2, 3), visible=False)
    (finding,) = judge_holders([one])
    assert finding.id == "cores_held"
    assert "look for it on the host" in finding.todo


def test_a_process_that_only_proc_shows_is_a_holder_too(machine: Machine) -> None:
    machine.opens(7, 2, "python", "-c", "import torch")
    machine.opens(7, 3, "python", "-c", "import torch")
    (one,) = held(machine)
    assert one == Holder(pid=7, command="python -c import torch", devices=(2, 3), visible=True)
    assert "kill 7" in judge_holders([one])[0].todo


def test_a_process_that_both_see_is_one_holder_with_its_whole_command(machine: Machine) -> None:
    machine.says("neuron-ls -j", recorded("neuron-ls.trn2.48xlarge.busy.json"))
    machine.opens(113985, 5, "python3", "-m", "torchtitan.train", "--module", "qwen3")
    (one,) = held(machine)
    assert one.command == "python3 -m torchtitan.train --module qwen3"
    assert one.devices == (0, 1, 2, 3, 5)


def test_only_the_program_tells_a_tool_and_never_an_argument(machine: Machine) -> None:
    machine.opens(8, 0, "/opt/aws/neuron/bin/neuron-top")
    machine.opens(9, 0, "python", "neuron-top")
    assert [one.pid for one in held(machine)] == [9]


def test_a_process_with_other_files_open_holds_nothing(machine: Machine) -> None:
    machine.opens(10, 0, "python")
    link = machine.root / "proc/10/fd/3"
    link.unlink()
    link.symlink_to("/dev/neuron_other")
    (machine.root / "proc/self").mkdir()
    assert held(machine) == ()


def test_without_neuron_ls_the_open_devices_still_tell(machine: Machine) -> None:
    machine.opens(11, 4, "python")
    (one,) = holders(None, machine.root)
    assert one.devices == (4,)


def test_a_tool_that_neuron_ls_lists_is_no_holder(machine: Machine) -> None:
    def listed(devices: list[dict[str, Any]]) -> None:
        devices[0]["neuron_processes"] = [{"pid": 12, "command": "neuron-monitor -c x.json"}]

    machine.change("neuron-ls -j", listed)
    assert held(machine) == ()


def test_a_process_that_ends_while_it_is_read_holds_what_was_seen(machine: Machine) -> None:
    machine.opens(13, 6, "python")
    (machine.root / "proc/13/cmdline").unlink()
    put(machine.root / "proc/13/fd/99", "no link any more")
    (one,) = held(machine)
    assert (one.command, one.devices) == ("", (6,))
