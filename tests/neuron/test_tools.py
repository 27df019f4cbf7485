from __future__ import annotations

import time
from pathlib import Path

import pytest

from trn_validate.neuron import tools
from trn_validate.neuron.finding import Finding
from trn_validate.neuron.tools import Kept, Output, Tools, unanswered


def script(root: Path, name: str, text: str, folder: str = "opt/aws/neuron/bin") -> Path:
    file = root / folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def finding(output: Output) -> Finding:
    why = unanswered(output)
    assert why is not None
    return why


def test_a_tool_is_taken_from_the_vendors_folder_before_any_other(tmp_path: Path) -> None:
    script(tmp_path, "neuron-ls", "echo other", folder="usr/bin")
    script(tmp_path, "neuron-ls", 'echo "vendor $1"')
    output = Tools(tmp_path).ask("neuron-ls", "-j")
    assert (output.ended, output.status, output.stdout) == ("exited", 0, "vendor -j\n")
    assert unanswered(output) is None


def test_the_path_is_no_place_for_a_host_that_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = script(tmp_path / "path", "neuron-ls", "echo here", folder=".").parent
    monkeypatch.setenv("PATH", str(folder))
    assert Tools(tmp_path / "host").find("neuron-ls") is None
    assert Tools(Path("/")).find("neuron-ls") == folder / "neuron-ls"


def test_a_tool_that_is_absent_is_named(tmp_path: Path) -> None:
    why = finding(Tools(tmp_path).ask("neuron-ls"))
    assert (why.id, why.where) == ("tool_absent", "neuron-ls")
    assert "/opt/aws/neuron/bin" in why.what


def test_a_tool_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    script(tmp_path, "neuron-ls", "echo here").chmod(0o644)
    assert finding(Tools(tmp_path).ask("neuron-ls")).id == "tool_failed"


def test_a_tool_that_prints_nothing_is_named_with_what_it_said_elsewhere(tmp_path: Path) -> None:
    script(tmp_path, "neuron-ls", "echo no device >&2; exit 1")
    why = finding(Tools(tmp_path).ask("neuron-ls", "-j"))
    assert (why.id, why.raw) == ("tool_failed", "no device\n")
    assert "exit status 1" in why.what


def test_a_tool_that_hangs_is_ended_with_all_its_children_and_named(tmp_path: Path) -> None:
    script(tmp_path, "neuron-ls", f"(sleep 1; echo late > {tmp_path}/late) & echo part; sleep 60")
    begun = time.monotonic()
    output = Tools(tmp_path, seconds=0.3).ask("neuron-ls")
    assert time.monotonic() - begun < 10
    why = finding(output)
    assert (why.id, why.raw) == ("tool_timeout", "part\n")
    time.sleep(1.2)
    assert not (tmp_path / "late").exists()


def test_a_stream_is_ended_after_its_first_record(tmp_path: Path) -> None:
    script(tmp_path, "neuron-monitor", "echo starting; sleep 0.2; echo '{\"a\": 1}'; sleep 60")
    begun = time.monotonic()
    output = Tools(tmp_path).ask("neuron-monitor", first_line=True)
    assert time.monotonic() - begun < 5
    assert (output.ended, output.status) == ("exited", 0)
    assert output.stdout == 'starting\n{"a": 1}\n'


def test_a_stream_without_a_record_is_a_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "FIRST_RECORD_SECONDS", 0.2)
    script(tmp_path, "neuron-monitor", "echo starting; sleep 60")
    assert finding(Tools(tmp_path).ask("neuron-monitor", first_line=True)).id == "tool_timeout"


def test_a_stream_that_ends_by_itself_keeps_its_status(tmp_path: Path) -> None:
    script(tmp_path, "neuron-monitor", "exit 3")
    assert Tools(tmp_path).ask("neuron-monitor", first_line=True).status == 3


def test_bytes_that_are_no_text_are_read(tmp_path: Path) -> None:
    script(tmp_path, "neuron-ls", "printf '\\377\\376'")
    assert Tools(tmp_path).ask("neuron-ls").stdout == "\ufffd\ufffd"


def test_a_tool_that_goes_on_cannot_be_started_where_it_is_not(tmp_path: Path) -> None:
    assert Tools(tmp_path).start("neuron-monitor") is None
    script(tmp_path, "neuron-monitor", "sleep 60").chmod(0o644)
    assert Tools(tmp_path).start("neuron-monitor") is None


def test_every_answer_is_kept_to_be_read_by_people(tmp_path: Path) -> None:
    script(tmp_path, "neuron-ls", 'echo "out $1"; echo err >&2; exit 3')
    kept = Kept(Tools(tmp_path).ask)
    kept.ask("neuron-ls", "-j")
    kept.ask("dmesg")
    assert "$ neuron-ls -j\n[exit status 3]\nout -j\n\nerr\n" in str(kept)
    assert "$ dmesg\n[absent]\n" in str(kept)
