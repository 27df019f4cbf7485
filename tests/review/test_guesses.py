from __future__ import annotations

import re
from pathlib import Path

from tests.builders import ROOT
from trn_validate.review.guesses import Guess, guesses


def test_a_labelled_sentence_is_found_with_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "trn_validate"
    folder.mkdir()
    (folder / "one.py").write_text(
        '"""A module. Guess: it is of use; nobody said so.\n\nMore."""\n'
        "# Guess: this comment goes\n#   on over two lines. And ends.\n"
        'NAME = 1\n"""Guess: 2.24.7 is the first."""\n'
        "class Guess:\n    pass\n"
    )
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/a.yaml").write_text("a: 1\nb: 2  # seconds\n# Guess: b is enough.\n")
    assert guesses(tmp_path) == (
        Guess("trn_validate/one.py", 1, "it is of use; nobody said so"),
        Guess("trn_validate/one.py", 4, "this comment goes on over two lines"),
        Guess("trn_validate/one.py", 7, "2.24.7 is the first"),
        Guess("configs/a.yaml", 3, "b is enough"),
    )


def test_every_guess_about_neuron_carries_the_label() -> None:
    files = [
        file
        for folder in ("trn_validate/neuron", "trn_validate/workload", "configs")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".yaml")
    ]
    spoken = {
        (str(file.relative_to(ROOT)), number)
        for file in files
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if re.search(r"\bguess", line, re.IGNORECASE)
    }
    labelled = {(guess.file, guess.line) for guess in guesses()}
    assert spoken
    assert spoken - labelled == set()


def test_what_the_set_up_assumes_is_among_them() -> None:
    told = [guess.what for guess in guesses() if guess.file == "scripts/neuron_stack.py"]
    assert len(told) == 2
