"""Data whose global batch is the same in every layout.

Sample i is a pure function of (seed, i), and optimizer step s takes the samples
[s * G, (s + 1) * G) for a global batch of G, however many ranks share them: data-parallel
rank r takes the r-th equal slice. torchtitan's own loader shards by rank and packs per rank,
so that another dp degree trains on other batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

try:
    from torchtitan.components.dataloader import BaseDataLoader
except ModuleNotFoundError:  # the generation after 0.3.0 moved it
    from torchtitan.components.data.loader import BaseDataLoader

from trn_validate.workload.tokenizer import FIRST_BYTE

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


def synthetic_sample(seed: int, index: int, *, length: int, vocab_size: int) -> torch.Tensor:
    """Sample ``index``: ``length`` int64 tokens that count upwards in small random steps.

    A model can learn that the next token is a little larger, so the loss falls.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
    start = torch.randint(0, vocab_size, (1,), generator=generator)
    steps = torch.randint(1, 4, (length,), generator=generator)
    return (start + torch.cumsum(steps, 0)) % vocab_size


def text_sample(text: torch.Tensor, seed: int, index: int, *, length: int) -> torch.Tensor:
    """Sample ``index``: ``length`` consecutive bytes from a random place of a text."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
    start = int(torch.randint(0, text.numel() - length + 1, (1,), generator=generator))
    return text[start : start + length].to(torch.int64) + FIRST_BYTE


def read_text(path: str, sha256: str | None, *, least: int) -> torch.Tensor:
    """Bytes of a text file, as uint8.

    Raises:
        ValueError: the file is not the one that the plan names, or shorter than ``least`` bytes.
    """
    data = Path(path).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256:
        raise ValueError(f"{path} has sha256 {found}, the plan names {sha256}")
    if len(data) < least:
        raise ValueError(f"{path} has {len(data)} bytes, but a sample takes {least}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class InvariantDataLoader(BaseDataLoader):
    """Yields ``({"input", "positions"}, labels)``, each (batch, seq_len) int64.

    The generation after 0.3.0 counts tokens, not samples, and folds both dimensions into
    one: it hands ``max_context_length`` and ``num_tokens_per_batch``, and gets
    (batch * seq_len,).
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What the loader is not handed by the trainer."""

        dataset: str = "synthetic"
        """``synthetic``, or ``text`` with ``dataset_path``."""
        sha256: str | None = None
        vocab_size: int = 2048
        global_batch_size: int = 8
        seed: int = 42

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int | None = None,
        local_batch_size: int | None = None,
        max_context_length: int | None = None,
        num_tokens_per_batch: int | None = None,
        **_: Any,
    ) -> None:
        if config.global_batch_size % dp_world_size:
            raise ValueError(
                f"global_batch_size {config.global_batch_size} is not divisible by the "
                f"data-parallel degree {dp_world_size}"
            )
        self.config = config
        self.dp_world_size = dp_world_size
        self.dp_rank = dp_rank
        self.folded = seq_len is None
        if seq_len is not None and local_batch_size is not None:
            self.seq_len, self.batch = seq_len, local_batch_size
        elif max_context_length is not None and num_tokens_per_batch is not None:
            self.seq_len = max_context_length
            self.batch = num_tokens_per_batch // max_context_length
        else:
            raise ValueError(
                "torchtitan hands the loader neither seq_len and local_batch_size nor "
                "max_context_length and num_tokens_per_batch"
            )
        self.per_step = config.global_batch_size // dp_world_size
        self.emitted = 0
        """Samples that this rank has yielded."""
        self.text = (
            read_text(config.dataset_path or "", config.sha256, least=self.seq_len + 1)
            if config.dataset == "text"
            else None
        )

    def _sample(self, index: int) -> torch.Tensor:
        length = self.seq_len + 1
        if self.text is not None:
            return text_sample(self.text, self.config.seed, index, length=length)
        return synthetic_sample(
            self.config.seed, index, length=length, vocab_size=self.config.vocab_size
        )

    def _next_index(self) -> int:
        step, place = divmod(self.emitted, self.per_step)
        self.emitted += 1
        return step * self.config.global_batch_size + self.dp_rank * self.per_step + place

    def __iter__(self) -> Iterator[Batch]:
        positions = torch.arange(self.seq_len).expand(self.batch, self.seq_len)
        while True:
            rows = torch.stack([self._sample(self._next_index()) for _ in range(self.batch)])
            inputs, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
            where = positions.contiguous()
            if self.folded:
                inputs, labels, where = inputs.flatten(), labels.flatten(), where.flatten()
            yield {"input": inputs, "positions": where}, labels

    def state_dict(self) -> dict[str, int]:
        """Samples consumed by all ranks, so that another dp degree can continue."""
        return {"global_samples": self.emitted * self.dp_world_size}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue where ``state_dict`` ended; an empty one starts afresh."""
        if state_dict:
            self.emitted = int(state_dict["global_samples"]) // self.dp_world_size
