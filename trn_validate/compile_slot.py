"""Stands before neuronx-cc on the path, and lets only so many compile at once.

Run as ``compile_slot.py FOLDER SLOTS COMPILER ARGUMENT...``. It waits for one of the slots, then
becomes the compiler; the lock goes with it and ends with its last process, however that ends.
Standard library only: every rank starts it for every operation that is not in the cache.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

_PAUSE = 0.1


def take(folder: Path, slots: int) -> int:
    """Descriptor of a slot, once one is free."""
    # Started somewhere else by each process, so that not all of them wait for the first.
    first = os.getpid() % slots
    while True:
        for number in range(slots):
            path = folder / f"slot-{(first + number) % slots}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            return descriptor
        time.sleep(_PAUSE)


def main(folder: str, slots: str, compiler: str, *arguments: str) -> None:
    """Take a slot and become the compiler."""
    os.set_inheritable(take(Path(folder), int(slots)), True)
    os.execv(compiler, [compiler, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
