"""One rank of a long-lived group, which carries out one run spec after another.

torchrun starts it as it starts the product's own ranks. It imports torchtitan once, takes the
specs that are put into its folder in their order, and builds and closes a trainer for each by
the product's own config function. The process group stays: torchtitan initialises none where
there is one. Of ``torchtitan.train.main`` only its last lines, the teardown, are left out.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path

from tests.defects.queue import POLL_SECONDS, Queue
from trn_validate.spec import RunSpec
from trn_validate.workload.clock import START
from trn_validate.workload.rank import answer_stack_requests, record_failure

_PATIENCE = 20.0
"""Seconds that a rank which raised waits for the others to end the job too."""


def main() -> None:
    """Carry out specs until the queue is closed."""
    parser = argparse.ArgumentParser(prog="tests.defects.worker")
    parser.add_argument("--queue", type=Path, required=True)
    parser.add_argument("--device", required=True)
    asked = parser.parse_args()
    queue = Queue(asked.queue)
    answer_stack_requests(asked.queue / "stacks")

    from trn_validate.workload import device

    device.install(asked.device)

    import torchtitan.train  # noqa: F401  # what every job needs, once
    from torchtitan.tools.logging import init_logger

    init_logger()
    rank, number = int(os.environ["RANK"]), 0
    while (spec := queue.take(number)) is not None:
        try:
            _train(spec)
        except BaseException as error:
            record_failure(spec.parent / "records", error)
            print(f"job {number} of rank {rank} raised {type(error).__name__}", file=sys.stderr)
            queue.done(number, rank, ok=False)
            # The others raised too, or they wait in a collective that this rank left.
            if not _all_done(queue, number):
                raise
        else:
            queue.done(number, rank, ok=True)
        _forget()
        number += 1


def _train(spec: Path) -> None:
    import torch._dynamo

    from trn_validate.workload.registry import from_spec

    START["process"] = START["imported"] = time.monotonic()
    os.environ["TRN_VALIDATE_SPEC"] = str(spec)
    if RunSpec.model_validate_json(spec.read_bytes()).compiled is not None:
        # Dynamo keeps what it compiled by code, and would take an earlier job's for this one's.
        torch._dynamo.reset()
    trainer = None
    try:
        config = from_spec()
        trainer = config.build()
        if config.checkpoint.create_seed_checkpoint:
            trainer.checkpointer.save(curr_step=0, last_step=True)
        else:
            trainer.train()
    finally:
        if trainer is not None:
            trainer.close()


def _forget() -> None:
    """Let the next job start as the first did, as far as memory and meshes go."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    # The cache finds a mesh by what it looks like, and would give the next job one of this job's.
    _clear_sharding_prop_cache()
    gc.collect()


def _all_done(queue: Queue, number: int) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if queue.finished(number) == int(os.environ["WORLD_SIZE"]):
            return True
        time.sleep(POLL_SECONDS)
    return False


if __name__ == "__main__":
    main()
