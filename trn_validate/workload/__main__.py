"""One rank: ``torchrun ... -m trn_validate.workload --spec FILE``.

Hands a config to torchtitan's own ``train.main`` and leaves a failure record if it
raises, so that the first failing rank can be told from those it dragged along.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path

from trn_validate.spec import RunSpec
from trn_validate.workload.clock import START
from trn_validate.workload.rank import answer_stack_requests, record_failure


def main() -> None:
    """Run one rank of the launch that ``--spec`` describes."""
    parser = argparse.ArgumentParser(prog="trn_validate.workload")
    parser.add_argument("--spec", type=Path, required=True)
    path: Path = parser.parse_args().spec
    spec = RunSpec.model_validate_json(path.read_text(encoding="utf-8"))
    answer_stack_requests(Path(spec.stacks))
    try:
        _train(path, spec)
    except BaseException as error:
        record_failure(Path(spec.records), error)
        raise


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


if __name__ == "__main__":
    main()
