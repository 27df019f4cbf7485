"""When this process reached each point of its start-up, on the monotonic clock."""

from __future__ import annotations

import time

START: dict[str, float] = {"process": time.monotonic()}
"""Monotonic seconds by point: process, imported, built."""
