"""Gradients and parameters that the ranks kept, read back by name.

What a file holds is the whole tensor or, for a model too large for that, its sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trn_validate.errors import EvidenceError, MeasurementError, TrnValidateError
from trn_validate.folded import Records
from trn_validate.records import Captured, Moment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Capture:
    """One moment of a run: the records of every stage's first rank, and where their files are."""

    folder: Path
    records: tuple[Captured, ...]
    """One per pipeline stage, from the first to the last."""
    accepted: bool = True
    """Whether a verdict vouches for the files; if not, it is the launch that did not leave them."""

    @property
    def launch(self) -> str:
        """``<stage>/<attempt>/<launch>`` of the run that left it, in whichever folder that is."""
        return "/".join(self.folder.parts[-4:-1])

    @property
    def names(self) -> tuple[str, ...]:
        """Every parameter that was kept, in forward order."""
        return tuple(name for record in self.records for name in record.norms)

    @property
    def norms(self) -> dict[str, float]:
        """L2 norm of each whole tensor."""
        return {name: norm for record in self.records for name, norm in record.norms.items()}

    @property
    def digests(self) -> dict[str, str]:
        """sha256 of each tensor."""
        return {name: d for record in self.records for name, d in record.digests.items()}

    @property
    def absent(self) -> tuple[str, ...]:
        """Parameters that asked for a gradient and had none."""
        return tuple(name for record in self.records for name in record.absent)

    @property
    def held(self) -> bool:
        """Whether the tensors were written, and not their digests and norms alone."""
        return all(record.file is not None for record in self.records)

    @property
    def sketched(self) -> bool:
        """Whether sketches stand for the tensors."""
        return any(record.mode == "sketch" for record in self.records)

    def reader(self) -> Callable[[str], Array | None]:
        """Look into the files; gives a function that reads one tensor, or None where there is none.

        Tensors are float64 and read one at a time, since all of them together may be large.

        Raises:
            EvidenceError: a file that is missing or is not what the record says.
            MeasurementError: the same, of a launch that no verdict has accepted yet.
        """
        from safetensors import safe_open

        files = {name: path for record in self.records for name, path in self._found(record)}

        def read(name: str) -> Array | None:
            if name not in files:
                return None
            # Opened for each: the pages of a file count as memory for as long as it is open.
            with self._refusing(files[name]), safe_open(files[name], framework="np") as file:
                tensor: Array = file.get_tensor(name).astype("float64")
            return tensor

        return read

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Each tensor in forward order, read as :meth:`reader` does."""
        read = self.reader()
        for name in self.names:
            if (tensor := read(name)) is not None:
                yield name, tensor

    def _found(self, record: Captured) -> Iterator[tuple[str, Path]]:
        """Each name of one stage's record with its file, once that is seen to hold them."""
        from safetensors import safe_open

        path = self.folder / (record.file or "")
        with self._refusing(path), safe_open(path, framework="np") as file:
            held = set(file.keys())
        if held != set(record.norms):
            raise self._refused("the file holds other tensors than its record names", path)
        for name in record.norms:
            yield name, path

    @contextmanager
    def _refusing(self, path: Path) -> Iterator[None]:
        from safetensors import SafetensorError

        try:
            yield
        except (SafetensorError, OSError) as error:
            raise self._refused(f"no file of tensors ({error})", path) from None

    def _refused(self, what: str, path: Path) -> TrnValidateError:
        if self.accepted:
            return EvidenceError(what, where=str(path), todo="Rerun the stage that wrote it.")
        return MeasurementError(what, where=str(path))


def read_capture(
    records: Records, folder: Path, moment: Moment, *, accepted: bool = True
) -> Capture | None:
    """What the ranks kept of that moment; None where a stage kept nothing."""
    lines = records.captures.get(moment)
    return Capture(folder, lines, accepted) if lines else None
