"""Bundles of imagined runs, for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stages import stages_of
from tests.fake_training import Defect, Rig, calm_host
from trn_validate import redact
from trn_validate.launch import FakeLauncher, LaunchRequest, LaunchResult
from trn_validate.review.bundle import bundle

HOST = "trainer-07.corp.example"
"""How the machine of these runs calls itself."""


def made_rig(folder: Path, *defects: Defect) -> Rig:
    """A run of every stage, walked to where it stops."""
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        patch.setattr(redact, "own_names", lambda known: (HOST,))
        rig = Rig(folder, *defects)
        training = rig.training

        def handler(request: LaunchRequest) -> LaunchResult:
            # A launch that is imagined takes no time, and may not claim more than its stage.
            return replace(training(request), seconds=0.0)

        rig.launcher = FakeLauncher(handler)
        rig.walk()
    return rig


def packed(rig: Rig, output: Path, limit: int = 0) -> Path:
    """The bundle of a run."""
    bundle(rig.run, output, limit, stages_of)
    return output
