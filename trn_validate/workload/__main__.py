"""One rank: ``torchrun ... -m trn_validate.workload --spec FILE``.

Hands a config to torchtitan's own ``train.main`` and leaves a failure record if it
raises, so that the first failing rank can be told from those it dragged along.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from trn_validate.records import Failure, failure_file
from trn_validate.spec import RunSpec
from trn_validate.workload.clock import START


def main() -> None:
    """Run one rank of the launch that ``--spec`` describes."""
    parser = argparse.ArgumentParser(prog="trn_validate.workload")
    parser.add_argument("--spec", type=Path, required=True)
    path: Path = parser.parse_args().spec
    spec = RunSpec.model_validate_json(path.read_text(encoding="utf-8"))
    _answer_stack_requests(Path(spec.stacks))
    try:
        _train(path, spec)
    except BaseException as error:
        _record_failure(Path(spec.records), error)
        raise


def _answer_stack_requests(folder: Path) -> None:
    """Write all stacks on SIGUSR1; the file's existence says that asking is safe."""
    folder.mkdir(parents=True, exist_ok=True)
    # Left open for the life of the process: the handler writes to its descriptor.
    file = (folder / f"{os.getpid()}.txt").open("w", encoding="utf-8")
    file.write(f"rank {os.environ.get('RANK', '?')}\n")
    file.flush()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    faulthandler.enable()


def _train(path: Path, spec: RunSpec) -> None:
    # Imports make millions of objects that all live on: looking through them for garbage takes
    # a tenth of the start-up.
    gc.disable()
    from trn_validate.workload import device

    device.install(spec.device)

    from torchtitan.train import main as train

    gc.enable()
    START["imported"] = time.monotonic()
    os.environ["TRN_VALIDATE_SPEC"] = str(path)
    # torchtitan reads its command line itself: the supported way in is --module and --config.
    sys.argv = [
        "torchtitan.train",
        "--module",
        "trn_validate.workload.registry",
        "--config",
        "from_spec",
    ]
    train()


def _record_failure(folder: Path, error: BaseException) -> None:
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


if __name__ == "__main__":
    main()
