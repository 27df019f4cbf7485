from __future__ import annotations

import subprocess
import sys

from tests.builders import ROOT

CODE = """
import sys
import pipeline, stages
from trn_validate import execute, launch_local, session
print([name for name in sys.modules if name.startswith("trn_validate.neuron")])
"""


def test_the_command_line_loads_nothing_of_the_neuron_package() -> None:
    command = [sys.executable, "-c", CODE]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
