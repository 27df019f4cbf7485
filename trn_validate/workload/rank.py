"""What every rank does beside its work: it answers requests for stacks, and says why it raised."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from pathlib import Path

from trn_validate.records import Failure, failure_file
from trn_validate.spec import STACKS


def answer_stack_requests(folder: Path) -> None:
    """Write all stacks on SIGUSR1; the file's existence says that asking is safe."""
    # Two nodes may have a process of the same id.
    folder = Path(os.environ.get(STACKS, folder))
    folder.mkdir(parents=True, exist_ok=True)
    # Left open for the life of the process: the handler writes to its descriptor.
    file = (folder / f"{os.getpid()}.txt").open("w", encoding="utf-8")
    file.write(f"rank {os.environ.get('RANK', '?')}\n")
    file.flush()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    faulthandler.enable()


def record_failure(folder: Path, error: BaseException) -> None:
    """Leave a failure record, so that the first failing rank can be told from the others."""
    rank = int(os.environ.get("RANK", "0"))
    failure = Failure(
        rank=rank,
        pid=os.getpid(),
        at=time.time(),
        type=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    with failure_file(folder, rank).open("w", encoding="utf-8") as file:
        file.write(failure.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
