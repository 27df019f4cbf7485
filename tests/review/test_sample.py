"""Whether the committed sample is what verify calls consistent."""

import shutil
from pathlib import Path

import pytest

from scripts.sample import MOST_BYTES, SAMPLE, write_again
from stages import stages_of
from trn_validate.paths import files_below
from trn_validate.review.verify import verify_folder

pytestmark = pytest.mark.skipif(not SAMPLE.is_dir(), reason="make sample was not run yet")


def test_the_sample_is_consistent() -> None:
    found = verify_folder(SAMPLE, stages_of)
    assert found.differences == []
    assert found.checks > 100
    assert "REHEARSAL" in found.decision


def test_of_what_was_left_out_it_is_told_what_is_kept() -> None:
    kept = {
        line.split(": left out; ")[0]: line
        for line in verify_folder(SAMPLE, stages_of).not_recomputed
    }
    captured = kept["parallelism.tp/1/tp/captures/end.stage-0.safetensors"]
    assert captured.endswith("the norms taken of it are kept")
    seed = kept["baseline.eager/1/seed/__0_0.distcp"]
    assert seed.endswith("its digest is kept")


def test_documents_that_another_template_made_are_made_again_and_nothing_else(
    tmp_path: Path,
) -> None:
    folder = tmp_path / SAMPLE.name
    shutil.copytree(SAMPLE, folder)
    (folder / "report.html").write_text("an older page", encoding="utf-8")
    assert verify_folder(folder, stages_of).differences != []
    write_again(folder)
    for name in files_below(SAMPLE):
        again = folder / name.relative_to(SAMPLE)
        assert again.read_bytes() == name.read_bytes(), again.name


def test_the_sample_is_small_and_without_tensors() -> None:
    files = files_below(SAMPLE)
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert not [path for path in files if path.suffix in (".safetensors", ".distcp")]
