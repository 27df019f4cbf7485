"""What imagined ranks keep of gradients and parameters: small tensors that follow from the spec."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from safetensors.numpy import save_file

from trn_validate.captures import Capture
from trn_validate.records import Captured, Moment
from trn_validate.spec import RunSpec, captures_folder

SHAPES = {
    "tok_embeddings.weight": (8, 4),
    "layers.0.attention.wq.weight": (4, 4),
    "layers.0.ffn_norm.weight": (4,),
    "layers.1.attention.wq.weight": (4, 4),
    "layers.1.ffn_norm.weight": (4,),
    "norm.weight": (4,),
    "lm_head.weight": (8, 4),
}
"""Parameters in forward order."""

MOMENTS: tuple[Moment, ...] = get_args(Moment)


def _noise(*words: object) -> np.random.Generator:
    text = " ".join(str(word) for word in words)
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


@dataclass
class Keeps:
    """What a launch keeps, before it is written; a defect may change every array."""

    spec: RunSpec
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Float32 arrays by moment and parameter."""
    drifted: tuple[int, str, str] | None = None
    """A rank, a moment and a parameter whose copy differs from that of the first rank."""
    absent: list[str] = field(default_factory=list)
    """Parameters that have no gradient."""
    forgotten: set[tuple[int, str]] = field(default_factory=set)
    """Rank and moment of which the rank records nothing."""
    unwritten: set[str] = field(default_factory=set)
    """Moments of which no file is written."""

    @classmethod
    def of(cls, spec: RunSpec) -> Keeps:
        """What healthy ranks keep: another layout or perturbed weights move the last digits."""
        if spec.capture == "none":
            return cls(spec)
        plain = str(spec.degrees) == "one process" and spec.accumulation == 1
        layout = (spec.degrees, spec.accumulation, spec.perturb)
        slight = 1e-6 if spec.perturb else 0.0 if plain else 3e-7
        arrays: dict[str, dict[str, Any]] = {moment: {} for moment in MOMENTS}
        for name, shape in SHAPES.items():
            values = _noise(spec.seed, name)
            start, gradient = (1 + values.random(shape), values.normal(size=shape))
            shift = 1 + slight * _noise(*layout, name).normal(size=shape)
            moved = start * (1 + 1e-7) if spec.perturb else start
            arrays["start"][name] = np.float32(moved)
            arrays["gradient"][name] = np.float32(gradient * shift)
            arrays["end"][name] = np.float32(start - 0.1 * gradient * shift)
        return cls(spec, arrays)

    def line(self, rank: int, moment: Moment) -> Captured:
        """What a rank records of a moment."""
        stage = self._stage(rank)
        arrays = self._of_stage(moment, stage)
        digests = {name: hashlib.sha256(a.tobytes()).hexdigest() for name, a in arrays.items()}
        if self.drifted is not None and self.drifted[:2] == (rank, moment):
            digests[self.drifted[2]] = "0" * 64
        writes = self._writes(rank, moment)
        return Captured(
            what=moment,
            mode=self.spec.capture,
            stage=stage,
            file=f"{moment}.stage-{stage}.safetensors" if writes else None,
            norms={name: float(np.linalg.norm(np.float64(a))) for name, a in arrays.items()},
            digests=digests,
            absent=tuple(n for n in self.absent if moment == "gradient" and self._at(n) == stage),
            seconds=0.1,
        )

    def write(self) -> None:
        """Write the files of the first ranks of each stage."""
        folder = captures_folder(self.spec)
        for rank in range(self.spec.degrees.world_size):
            for moment in self.arrays:
                if self._writes(rank, moment) and moment not in self.unwritten:
                    folder.mkdir(parents=True, exist_ok=True)
                    stage = self._stage(rank)
                    path = Path(folder / f"{moment}.stage-{stage}.safetensors")
                    save_file(dict(self._of_stage(moment, stage)), path)

    def _stage(self, rank: int) -> int:
        degrees = self.spec.degrees
        return rank * degrees.pp // degrees.world_size

    def _writes(self, rank: int, moment: str) -> bool:
        block = self.spec.degrees.world_size // self.spec.degrees.pp
        return rank % block == 0 and (moment != "start" or self.spec.keep_start)

    def _of_stage(self, moment: str, stage: int) -> Mapping[str, Any]:
        return {n: a for n, a in self.arrays[moment].items() if self._at(n) == stage}

    def _at(self, name: str) -> int:
        """Pipeline stage of a parameter; one that the model does not have comes last."""
        names, stages = list(SHAPES), self.spec.degrees.pp
        share = -(-len(names) // stages)
        return names.index(name) // share if name in names else stages - 1


def written(
    folder: Path, arrays: Mapping[str, Any], *, moment: Moment = "gradient", **changes: Any
) -> Capture:
    """What one stage kept, with its file; ``changes`` are fields of the record."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()}
    values: dict[str, Any] = {
        "what": moment,
        "mode": "full",
        "stage": 0,
        "file": f"{moment}.stage-0.safetensors",
        "norms": {n: float(np.linalg.norm(np.float64(a))) for n, a in found.items()},
        "digests": {n: hashlib.sha256(a.tobytes()).hexdigest() for n, a in found.items()},
        "seconds": 0.1,
    }
    record = Captured(**(values | changes))
    if record.file is not None:
        save_file(found, folder / record.file)
    return Capture(folder, (record,))
