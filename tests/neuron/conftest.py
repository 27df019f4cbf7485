from __future__ import annotations

from pathlib import Path

import pytest

from tests.neuron.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A healthy trn2.48xlarge."""
    return Machine(tmp_path / "host").build()


@pytest.fixture
def small(tmp_path: Path) -> Machine:
    """A healthy trn2.3xlarge."""
    return Machine(tmp_path / "small", kind="trn2.3xlarge").build()
