"""Operations of torch.distributed on values that follow from the numbers of the ranks.

Every rank can compute what every other one sends, so the expected result of each operation is
known exactly. Sums are of 0, 1 and 2, and all other values are below 251: bfloat16 holds every
whole number up to 256, so sums over up to 128 ranks are exact in it, in whatever order. What an
operation has to fill is filled with NaN before, or with -7 in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from trn_validate.spec import Collective

_SUMMED, _SENT = 3, 251
"""Values are below these."""
_COUNT = {"plain": 96, "strided": 96, "uneven": 96, "scalar": 1, "large": 2**18}
"""Elements of one rank's part."""


@dataclass(frozen=True)
class Members:
    """The group of this rank."""

    group: Any
    """None for all ranks."""
    ranks: tuple[int, ...]
    """Global ranks, in the order of the group."""
    place: int
    """Of this rank in it."""

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.ranks)


@dataclass
class Attempt:
    """One operation, ready to be issued."""

    issue: Callable[[], Sequence[Any]]
    """Hands it to the process group, and gives what has to be waited for."""
    outcome: Callable[[], tuple[Any, Any]]
    """What was found and what was expected, once it is done."""
    untouched: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Inputs that have to stay as they were, with copies of them on the CPU."""


def values(rank: int, count: int, salt: int, modulus: int = _SENT) -> torch.Tensor:
    """Whole numbers of a rank below ``modulus`` (count,); another salt gives others."""
    index = torch.arange(count, dtype=torch.int64)
    mixed = (index * 7919 + rank * 104729 + salt * 15485863) % 1048573
    return (mixed * mixed // 7 + mixed * 31) % modulus


def attempt(operation: Collective, members: Members, device: torch.device, salt: int) -> Attempt:
    """Prepare an operation on this rank; ``salt`` makes its values differ from all others'."""
    return _PREPARE[operation.kind](_Making(operation, members, device, salt))


def compared(found: Any, expected: Any) -> str:
    """How two values differ; empty where they are the same, NaN never being so."""
    if not isinstance(found, torch.Tensor):
        return "" if found == expected else f"{found!r:.80} is not {expected!r:.80}"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {tuple(found.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    apart = (found != expected).flatten()
    count = int(apart.sum())
    if count == 0:
        return ""
    first = int(apart.nonzero()[0])
    one, other = (float(t.flatten()[first]) for t in (found, expected))
    return f"element {first} is {one:g}, not {other:g}; {count} of {apart.numel()} differ"


@dataclass(frozen=True)
class _Making:
    """What the functions below share."""

    operation: Collective
    members: Members
    device: torch.device
    salt: int

    @property
    def count(self) -> int:
        return _COUNT[self.operation.form]

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.operation.dtype)
        return dtype

    def sent(self, rank: int, count: int, modulus: int = _SENT) -> torch.Tensor:
        """What a rank sends (count,), or () for a scalar; on the CPU."""
        made = values(rank, count, self.salt, modulus).to(self.dtype)
        # One more, since a sum that is 0 would be right by accident.
        return made[0] + 1 if self.operation.form == "scalar" else made

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """The values on the device, with gaps between them where the form asks for it."""
        # A copy on the CPU too: what is expected must not lie where an operation writes.
        there = values.to(self.device, copy=True)
        if self.operation.form != "strided":
            return there
        gaps = torch.full((*values.shape, 2), -1, dtype=self.dtype).to(self.device)
        gaps[..., 0] = there
        return gaps[..., 0]

    def blank(self, *shape: int) -> torch.Tensor:
        """Memory that an operation has to fill."""
        fill = math.nan if self.dtype.is_floating_point else -7
        return self.put(torch.full(shape, fill, dtype=self.dtype))

    def shape(self) -> tuple[int, ...]:
        """Of one rank's part."""
        return () if self.operation.form == "scalar" else (self.count,)


def _barrier(making: _Making) -> Attempt:
    return Attempt(
        issue=lambda: [dist.barrier(group=making.members.group, async_op=True)],
        outcome=lambda: ("passed", "passed"),
    )


def _broadcast(making: _Making) -> Attempt:
    members = making.members
    root = members.ranks[-1]
    expected = making.sent(root, making.count)
    mine = members.place == members.size - 1
    tensor = making.put(expected) if mine else making.blank(*making.shape())
    return Attempt(
        issue=lambda: [dist.broadcast(tensor, src=root, group=members.group, async_op=True)],
        outcome=lambda: (tensor.cpu(), expected),
    )


def _all_reduce(making: _Making) -> Attempt:
    return _reduced(making, dist.ReduceOp.SUM)


def _all_reduce_max(making: _Making) -> Attempt:
    return _reduced(making, dist.ReduceOp.MAX)


def _reduced(making: _Making, op: Any) -> Attempt:
    largest = op == dist.ReduceOp.MAX
    modulus = _SENT if largest else _SUMMED
    sent = [making.sent(rank, making.count, modulus) for rank in making.members.ranks]
    parts = torch.stack(sent)
    expected = parts.amax(0) if largest else parts.double().sum(0).to(making.dtype)
    tensor = making.put(sent[making.members.place])
    return Attempt(
        issue=lambda: [dist.all_reduce(tensor, op, group=making.members.group, async_op=True)],
        outcome=lambda: (tensor.cpu(), expected),
    )


def _all_gather(making: _Making) -> Attempt:
    members = making.members
    sent = [making.sent(rank, making.count) for rank in members.ranks]
    own, output = making.put(sent[members.place]), making.blank(members.size * making.count)
    return Attempt(
        issue=lambda: [
            dist.all_gather_into_tensor(output, own, group=members.group, async_op=True)
        ],
        outcome=lambda: (output.cpu(), torch.cat(sent)),
        untouched=[(own, sent[members.place])],
    )


def _all_gather_list(making: _Making) -> Attempt:
    members = making.members
    sent = [making.sent(rank, making.count) for rank in members.ranks]
    own = making.put(sent[members.place])
    outputs = [making.blank(*making.shape()) for _ in members.ranks]
    return Attempt(
        issue=lambda: [dist.all_gather(outputs, own, group=members.group, async_op=True)],
        outcome=lambda: (torch.stack([one.cpu() for one in outputs]), torch.stack(sent)),
        untouched=[(own, sent[members.place])],
    )


def _reduce_scatter(making: _Making) -> Attempt:
    members, count = making.members, making.count
    sent = [making.sent(rank, count * members.size, _SUMMED) for rank in members.ranks]
    total = torch.stack(sent).double().sum(0).to(making.dtype)
    own, output = making.put(sent[members.place]), making.blank(count)
    return Attempt(
        issue=lambda: [dist.reduce_scatter_tensor(output, own, group=members.group, async_op=True)],
        outcome=lambda: (output.cpu(), total[members.place * count :][:count]),
        untouched=[(own, sent[members.place])],
    )


@dataclass(frozen=True)
class _Exchange:
    """What each rank of a group sends to each other one."""

    making: _Making

    def parts(self, sender: int) -> list[int]:
        """Elements that the rank at this place sends to each; nothing to some, if uneven."""
        size, count = self.making.members.size, self.making.count
        if self.making.operation.form != "uneven":
            return [count] * size
        return [(sender + 2 * receiver) % 4 * count // 4 for receiver in range(size)]

    def sends(self, sender: int) -> list[torch.Tensor]:
        """The parts themselves."""
        parts = self.parts(sender)
        whole = self.making.sent(self.making.members.ranks[sender], sum(parts))
        return list(torch.split(whole, parts))

    def gets(self) -> list[torch.Tensor]:
        """What this rank is to receive from each."""
        place = self.making.members.place
        return [self.sends(sender)[place] for sender in range(self.making.members.size)]


def _all_to_all(making: _Making) -> Attempt:
    members, exchange = making.members, _Exchange(making)
    expected = exchange.gets()
    given = torch.cat(exchange.sends(members.place))
    own, output = making.put(given), making.blank(sum(len(one) for one in expected))
    splits: tuple[Any, Any] = (None, None)
    if making.operation.form == "uneven":
        splits = ([len(one) for one in expected], exchange.parts(members.place))
    return Attempt(
        issue=lambda: [
            dist.all_to_all_single(output, own, *splits, group=members.group, async_op=True)
        ],
        outcome=lambda: (output.cpu(), torch.cat(expected)),
        untouched=[(own, given)],
    )


def _all_to_all_list(making: _Making) -> Attempt:
    members, exchange = making.members, _Exchange(making)
    expected, given = exchange.gets(), exchange.sends(members.place)
    own = [making.put(one) for one in given]
    outputs = [making.blank(len(one)) for one in expected]
    return Attempt(
        issue=lambda: [dist.all_to_all(outputs, own, group=members.group, async_op=True)],
        outcome=lambda: (torch.cat([one.cpu() for one in outputs]), torch.cat(expected)),
        untouched=list(zip(own, given, strict=True)),
    )


def _send_recv(making: _Making) -> Attempt:
    """Each rank sends to the next one and receives from the one before, as stages of pp do."""
    members = making.members
    after, before = (members.ranks[(members.place + by) % members.size] for by in (1, -1))
    sent = making.sent(members.ranks[members.place], making.count)
    own, output = making.put(sent), making.blank(*making.shape())

    def issue() -> Sequence[Any]:
        works: Sequence[Any] = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, own, after, members.group),
                dist.P2POp(dist.irecv, output, before, members.group),
            ]
        )
        return works

    return Attempt(
        issue=issue,
        outcome=lambda: (output.cpu(), making.sent(before, making.count)),
        untouched=[(own, sent)],
    )


def _objects(making: _Making) -> Attempt:
    """What torch's distributed checkpoints exchange while they load and save."""
    members, salt = making.members, making.salt
    made = [{"rank": rank, "salt": salt} for rank in members.ranks]
    own, first = made[members.place], members.ranks[0]
    found: dict[str, Any] = {}

    def issue() -> Sequence[Any]:
        everyone: list[Any] = [None] * members.size
        dist.all_gather_object(everyone, own, group=members.group)
        at_first: list[Any] | None = [None] * members.size if members.place == 0 else None
        dist.gather_object(own, at_first, dst=first, group=members.group)
        mine: list[Any] = [None]
        dist.scatter_object_list(
            mine, made if members.place == 0 else None, src=first, group=members.group
        )
        told: list[Any] = [own if members.place == 0 else None]
        dist.broadcast_object_list(told, src=first, group=members.group)
        found.update(gathered=everyone, collected=at_first, scattered=mine, told=told)
        return []

    expected = {
        "gathered": made,
        "collected": made if members.place == 0 else None,
        "scattered": [own],
        "told": [made[0]],
    }
    return Attempt(issue=issue, outcome=lambda: (found, expected))


_PREPARE: dict[str, Callable[[_Making], Attempt]] = {
    "barrier": _barrier,
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "all_reduce_max": _all_reduce_max,
    "all_gather": _all_gather,
    "all_gather_list": _all_gather_list,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_list": _all_to_all_list,
    "send_recv": _send_recv,
    "objects": _objects,
}
