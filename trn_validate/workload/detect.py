"""Which device and communication backend torchtitan would use, and how it is configured.

All of it is asked and nothing assumed.

Run as ``python -m trn_validate.workload.detect DEVICE FILE`` in a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(device: str, file: str) -> int:
    """Write torchtitan's answers to ``file``."""
    from trn_validate.workload.device import install

    install(device)

    import torch.distributed as dist
    from torchtitan import config
    from torchtitan.tools import utils

    from trn_validate.workload.fields import generation

    # torchtitan's own rule (distributed/utils.py, init_distributed).
    backend = dist.Backend.default_device_backend_map.get(utils.device_type, "nccl")
    answer = {
        "device": utils.device_type,
        "backend": backend,
        "generation": generation(config),
    }
    Path(file).write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
