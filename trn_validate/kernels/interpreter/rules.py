"""What every rule needs: the sizes of the hardware, and one form of error.

Sizes are those of Trn2 (NeuronCore-v3). An error names the instruction, the operand, the rule
and the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from trn_validate.errors import KernelError

PARTITIONS = 128
"""Source: api/nki/language/__init__.py, ``_TileSize.pmax``;
guides/architecture/trainium_inferentia2_arch.rst, "Tile Size"."""

PSUM_BANK_BYTES = 2048
PSUM_BANKS = 8
"""A bank holds 512 float32 a partition; a partition of PSUM has 16 KiB, so 8 banks.
Source: guides/architecture/trainium_inferentia2_arch.rst ("one PSUM partition has 16KiB");
api/nki.language.tile_size.rst, ``psum_num_banks``."""

SBUF_BYTES = 224 * 1024
"""Bytes of one SBUF partition. Source: guides/architecture/trainium2_arch.rst ("NeuronCore-v3
SBUF capacity is 28MiB (or, 128 partitions of 224KiB)"). The compiler keeps some for itself; how
much is not documented."""

STATIONARY_FREE = 128
MOVING_FREE = 512
"""Source: api/nki/isa/__init__.py, ``nc_matmul``, "Tile size";
guides/architecture/trainium_inferentia2_arch.rst, "Tile Size"."""

LNC = (1, 2)
"""Cores that one launch may use. Source: get-started/about/lnc.rst, "Launching a kernel"."""


def broken(rule: str, operand: object, sizes: object) -> KernelError:
    """The error of a broken rule, to be raised; ``sizes`` are those found, then the limit."""
    todo = "Change the kernel or the shape."
    return KernelError(f"{rule}: {sizes}", where=str(operand), todo=todo)


def require(holds: bool, rule: str, operand: object, sizes: object) -> None:
    """Refuse where a rule does not hold; operand and sizes become text only then.

    Raises:
        KernelError: ``holds`` is false.
    """
    if not holds:
        raise broken(rule, operand, sizes)


def in_subset(holds: bool, operand: object, found: object, known: Sequence[object]) -> None:
    """Refuse what NKI may have, but this interpreter has not.

    Raises:
        KernelError: ``holds`` is false.
    """
    if not holds:
        names = ", ".join(str(name) for name in known)
        raise broken("outside the interpreted part of NKI", operand, f"{found}; known: {names}")


def partition_start(operand: str, start: int, count: int) -> None:
    """Over 64 partitions start at 0, over 32 at 0 or 64, fewer at 0, 32, 64 or 96.

    Source: guides/architecture/trainium_inferentia2_arch.rst, ``start_partition``.

    Raises:
        KernelError: the tile starts elsewhere.
    """
    step = 128 if count > 64 else 64 if count > 32 else 32
    require(
        start % step == 0,
        "partition start",
        operand,
        f"{count} partitions from {start}, which is no multiple of {step}",
    )
