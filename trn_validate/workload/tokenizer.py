"""A byte-level tokenizer: no file, no download, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.components.tokenizer import BaseTokenizer

FIRST_BYTE = 1
"""Token of byte 0; token 0 ends a text."""


class ByteTokenizer(BaseTokenizer):
    """Token = byte + 1; 0 is the end of a text."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """How many tokens the model has; at least 257."""

        vocab_size: int = 257

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()
        if config.vocab_size < FIRST_BYTE + 256:
            raise ValueError(
                f"a vocabulary of {config.vocab_size} cannot hold 256 bytes and an end"
            )
        self.vocab_size = config.vocab_size
        self.eos_id = 0

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Tokens of ``text``, without markers."""
        return [byte + FIRST_BYTE for byte in text.encode("utf-8")]

    def decode(self, tokens: list[int], *_: Any, **__: Any) -> str:
        """Text of ``tokens``; what is no byte is left out."""
        data = bytes(t - FIRST_BYTE for t in tokens if FIRST_BYTE <= t < FIRST_BYTE + 256)
        return data.decode("utf-8", errors="replace")

    def get_vocab_size(self) -> int:
        """Size of the vocabulary, the model's."""
        return self.vocab_size
