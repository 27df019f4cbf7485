from __future__ import annotations

from collections.abc import Iterator

import pytest

from trn_validate.kernels import launches


@pytest.fixture(autouse=True)
def counted_from_zero() -> Iterator[None]:
    """No test sees the launches of another."""
    launches.reset()
    yield
    launches.reset()
