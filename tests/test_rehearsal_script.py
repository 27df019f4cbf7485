"""What `make rehearse` puts on the path, for itself alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import rehearsal
from scripts.rehearsal import PIPELINE, ROOT, command, digest, surroundings
from trn_validate.target import HOST_ROOT


def test_options_go_to_the_pipeline_and_what_comes_after_two_dashes_to_python() -> None:
    assert command(()) == PIPELINE
    assert command(("--new",)) == (*PIPELINE, "--new")
    assert command(("--", "-c", "pass")) == ("-c", "pass")


def test_a_command_finds_the_device_and_the_host_and_keeps_the_rest(tmp_path: Path) -> None:
    found = surroundings(tmp_path, tmp_path / "host", {"HOME": "/h", "PYTHONPATH": "/other"})
    assert found["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "site"), str(ROOT)]
    assert found[HOST_ROOT] == str(tmp_path / "host")
    assert found["HOME"] == "/h"


def test_another_source_is_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/device.cpp").write_text("int one;")
    monkeypatch.setattr(rehearsal, "SOURCES", tmp_path)
    first = digest()
    assert digest() == first
    (tmp_path / "notes.txt").write_text("no source")
    assert digest() == first
    (tmp_path / "csrc/device.cpp").write_text("int two;")
    assert digest() != first


def test_what_cannot_be_built_says_why_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "setup.py").write_text("raise SystemExit('no compiler here')\n")
    monkeypatch.setattr(rehearsal, "SOURCES", sources)
    with pytest.raises(RuntimeError, match="no compiler here"):
        rehearsal.build(tmp_path / "built")
    assert [one.name for one in (tmp_path / "built").iterdir()] == ["lock"]


def test_a_user_gets_the_reason_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Path:
        raise RuntimeError("the rehearsal device could not be built: no g++")

    monkeypatch.setattr(rehearsal, "build", fails)
    assert rehearsal.main([]) == 2
    assert capsys.readouterr().err == "the rehearsal device could not be built: no g++\n"
