"""What the checkpoints that a run left on the disk say that they hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trn_validate.records import Saved


def saved(folder: Path) -> Iterator[Saved]:
    """The entries of each ``step-<n>`` below ``folder``, by the index that it is read with."""
    for index in sorted(folder.glob("step-*/.metadata")):
        entries = FileSystemReader(index.parent).read_metadata().state_dict_metadata
        yield Saved(
            step=int(index.parent.name.removeprefix("step-")),
            elements={
                name: math.prod(entry.size) if isinstance(entry, TensorStorageMetadata) else 0
                for name, entry in entries.items()
            },
        )
