from __future__ import annotations

from typing import Any

import pytest

from tests.neuron.machine import Machine, lnc_1, recorded
from trn_validate.neuron.neuron_ls import Listing, Process, list_devices, parse_devices
from trn_validate.neuron.tools import Output


def listed(machine: Machine) -> Listing:
    read = list_devices(machine.ask)
    assert read.value is not None
    assert read.findings == ()
    return read.value


def faults(machine: Machine) -> list[str]:
    return [finding.id for finding in list_devices(machine.ask).findings]


def said(text: str, status: int = 0) -> Output:
    return Output(name="neuron-ls", ended="exited", status=status, stdout=text)


def test_a_large_instance_has_its_devices_cores_and_header(machine: Machine) -> None:
    listing = listed(machine)
    assert [device.index for device in listing.devices] == list(range(16))
    assert {device.cores for device in listing.devices} == {4}
    assert {device.memory_bytes for device in listing.devices} == {96 * 2**30}
    assert listing.devices[15].core_ids == (60, 61, 62, 63)
    assert (listing.instance_type, listing.lnc, listing.lncs) == ("trn2.48xlarge", 2, (2,))


def test_a_small_instance_has_one_device_and_links_that_are_null(small: Machine) -> None:
    listing = listed(small)
    assert [device.cores for device in listing.devices] == [4]
    assert listing.instance_type == "trn2.3xlarge"


def test_a_busy_instance_tells_who_holds_which_device(machine: Machine) -> None:
    machine.says("neuron-ls -j", recorded("neuron-ls.trn2.48xlarge.busy.json"))
    held = {device.index: device.processes for device in listed(machine).devices}
    command = "python3 -m torchtitan.train --module qwe..."
    assert held[3] == (Process(pid=113985, command=command),)
    assert held[4] == ()


def test_a_tool_that_is_older_tells_no_lnc_in_its_json(machine: Machine) -> None:
    def older(listing: list[dict[str, Any]]) -> None:
        for device in listing:
            del device["logical_neuroncore_config"]

    machine.change("neuron-ls -j", older)
    assert listed(machine).lncs == (2,)


def test_text_around_the_json_is_noise_that_is_kept(machine: Machine) -> None:
    text = f"[INFO] nrt: [1, 2]\n{recorded('neuron-ls.trn2.48xlarge.json')}\nbye [ok]\n"
    read = parse_devices(said(text))
    assert read.value is not None
    assert len(read.value) == 16
    (noise,) = read.findings
    assert (noise.id, noise.severity) == ("tool_output_noisy", "warning")
    assert noise.raw == "[INFO] nrt: [1, 2]\nbye [ok]"


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_json_that_ends_in_the_middle_is_truncated_and_kept(part: float) -> None:
    whole = recorded("neuron-ls.trn2.48xlarge.json").rstrip()
    text = whole[: int(len(whole) * part)]
    read = parse_devices(said(text))
    assert read.value is None
    assert [(finding.id, finding.raw) for finding in read.findings] == [
        ("tool_output_truncated", text)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "flag provided but not defined: -j\n",
        '{"neuron_device": 0}',
        '[{"neuron_device": 0}]',
        '[{"neuron_device": "no number", "nc_count": 4, "memory_size": 1}]',
        "[" * 100_000 + "]" * 100_000,
        "[[]]",
    ],
)
def test_what_is_no_listing_is_unreadable_and_kept(text: str) -> None:
    read = parse_devices(said(text, 1))
    assert read.value is None
    assert [(finding.id, finding.raw) for finding in read.findings] == [
        ("tool_output_unreadable", text)
    ]


def test_no_device_at_all_is_an_answer() -> None:
    assert parse_devices(said("[]\n")).value == ()


def test_an_answer_that_contradicts_itself_is_named(machine: Machine) -> None:
    def twice(listing: list[dict[str, Any]]) -> None:
        listing[1]["neuron_device"] = 0
        listing[2]["neuroncore_ids"] = [8, 9]

    machine.change("neuron-ls -j", twice)
    read = list_devices(machine.ask)
    assert [finding.what for finding in read.findings] == [
        "a device is listed twice",
        "device 2 has 4 cores and 2 core ids",
    ]
    assert {finding.id for finding in read.findings} == {"tool_output_contradicts_itself"}


def test_a_header_with_another_lnc_than_the_devices_is_named(machine: Machine) -> None:
    machine.change("neuron-ls -j", lnc_1)
    assert faults(machine) == ["tool_output_contradicts_itself"]


@pytest.mark.parametrize("text", ["", "usage: neuron-ls\n", "instance-type: trn2.48xlarge\n"])
def test_a_header_is_read_or_named(machine: Machine, text: str) -> None:
    machine.says("neuron-ls", text)
    read = list_devices(machine.ask)
    assert read.value is not None
    expected = {"": ["tool_failed"], "usage: neuron-ls\n": ["tool_output_unreadable"]}
    assert [finding.id for finding in read.findings] == expected.get(text, [])


def test_a_header_with_an_lnc_that_does_not_exist_is_named(machine: Machine) -> None:
    text = recorded("neuron-ls.trn2.48xlarge.txt").replace("config: 2", "config: 3")
    machine.says("neuron-ls", text)
    assert faults(machine) == ["tool_output_unreadable"]
