"""What is told of a compiler's cache, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from trn_validate.compile_cache import INDUCTOR, CacheState, cache_folder, files_in, told


def put(folder: Path, *names: str) -> set[Path]:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    return files_in(folder)


def over(folder: Path, before: set[Path]) -> str:
    return told(len(before), CacheState.of(folder, before))


def test_a_cache_that_was_empty_is_cold(tmp_path: Path) -> None:
    before = files_in(tmp_path / "none")
    put(tmp_path, "a/1.neff", "b/2.neff")
    assert over(tmp_path, before) == "cold: 0 files before, 2 after, 2 of them new"


def test_a_cache_that_gets_nothing_new_is_warm(tmp_path: Path) -> None:
    before = put(tmp_path, "a/1.neff")
    assert over(tmp_path, before) == "warm: 1 files before, 1 after, 0 of them new"


def test_a_cache_that_had_something_and_gets_more_is_partly_warm(tmp_path: Path) -> None:
    before = put(tmp_path, "a/1.neff")
    put(tmp_path, "b/2.neff")
    assert over(tmp_path, before) == "partly warm: 1 files before, 2 after, 1 of them new"


def test_a_file_that_came_for_another_is_new(tmp_path: Path) -> None:
    before = put(tmp_path, "a/1.neff")
    (tmp_path / "a/1.neff").unlink()
    put(tmp_path, "b/2.neff")
    assert over(tmp_path, before).endswith("1 files before, 1 after, 1 of them new")


def test_an_entry_with_a_log_and_nothing_compiled_is_named(tmp_path: Path) -> None:
    before = put(tmp_path, "neff/good/x.neff", "neff/good/x.log", "neff/bad/x.log")
    assert over(tmp_path, before).endswith("; failed entries: neff/bad")


def test_of_many_failed_entries_five_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    before = put(tmp_path, *(f"{number}/x.error" for number in range(7)))
    assert over(tmp_path, before).endswith("failed entries: 0, 1, 2, 3, 4 and 2 more")


def test_each_device_has_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INDUCTOR, str(tmp_path / "mine"))
    assert cache_folder("cpu", tmp_path) == tmp_path / "mine"
    assert cache_folder("neuron", tmp_path) == tmp_path / "neuron-cache"
    monkeypatch.delenv(INDUCTOR)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert cache_folder("cpu", tmp_path).parent == tmp_path
    assert cache_folder("cpu", tmp_path).name.startswith("torchinductor_")
