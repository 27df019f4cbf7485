"""The counter in a real group of two processes, and beside torch's own CommDebugMode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trn_validate.records import Communication
from trn_validate.workload.comm import CommunicationCounter, kind_of

RANKS = 2
WIDTH, ROWS = 8, 4
LAYER = (WIDTH * WIDTH + WIDTH) * 4
"""Bytes of one float32 linear layer, weight and bias."""
ACTIVATION = ROWS * WIDTH * 4

OPERATORS = torch.ops._c10d_functional

KINDS = {
    "c10d._allgather_base_": "all_gather",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.allgather_": "all_gather",
    "c10d.allgather_coalesced_": "all_gather",
    "c10d.allgather_into_tensor_coalesced_": "all_gather",
    "c10d.allreduce_": "all_reduce",
    "c10d.allreduce_coalesced_": "all_reduce",
    "c10d.alltoall_": "all_to_all",
    "c10d.alltoall_base_": "all_to_all",
    "c10d.broadcast_": "broadcast",
    "c10d.gather_": "gather",
    "c10d.scatter_": "scatter",
    "c10d.reduce_": "reduce",
    "c10d.reduce_scatter_": "reduce_scatter",
    "c10d.reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d_functional.all_gather_into_tensor": "all_gather",
    "c10d_functional.all_gather_into_tensor_coalesced": "all_gather",
    "c10d_functional.all_reduce": "all_reduce",
    "c10d_functional.all_reduce_coalesced": "all_reduce",
    "c10d_functional.all_to_all_single": "all_to_all",
    "c10d_functional.broadcast": "broadcast",
    "c10d_functional.reduce_scatter_tensor": "reduce_scatter",
    "c10d_functional.reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_dtensor.shard_dim_alltoall": "all_to_all",
}
"""Our kind for every operator that CommDebugMode may report, by its name for it."""

UNKNOWN_TO_TORCH = {"send", "recv", "barrier"}
"""Kinds that CommDebugMode does not count."""

OVERLOOKED_BY_TORCH = {"functional all_reduce_", "functional out", "autograd"}
"""Blocks that call operators of its kinds which CommDebugMode does not know."""


@dataclass
class Watch:
    """Runs blocks under one kind of mode and keeps what it counted in each."""

    mode: type
    calls: dict[str, dict[str, int]] = field(default_factory=dict)
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    graphs: list[str] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        assert name not in self.calls
        with self.mode() as mode:
            yield
        if isinstance(mode, CommunicationCounter):
            self.calls[name], self.bytes[name] = dict(mode.calls), dict(mode.bytes)
        else:
            self.calls[name] = {str(k): v for k, v in mode.get_comm_counts().items()}


def floats(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def c10d(rank: int, watch: Watch) -> None:
    pair = [floats(10), floats(10)]
    blocks: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(floats(10)),
        "all_reduce bfloat16": lambda: dist.all_reduce(floats(10).bfloat16()),
        "all_gather": lambda: dist.all_gather_into_tensor(floats(20), floats(10)),
        "all_gather list": lambda: dist.all_gather([floats(10), floats(10)], floats(10)),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(floats(10), floats(20)),
        "reduce_scatter list": lambda: dist.reduce_scatter(floats(10), pair),
        "all_to_all": lambda: dist.all_to_all_single(floats(10), floats(10)),
        "broadcast": lambda: dist.broadcast(floats(10), 0),
        "reduce": lambda: dist.reduce(floats(10), 0),
        "gather": lambda: dist.gather(floats(10), pair if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(floats(10), pair if rank == 0 else None, 0),
        "barrier": dist.barrier,
    }
    for name, block in blocks.items():
        with watch(name):
            block()
    with watch("two of a kind and one of another"):
        blocks["all_reduce"]()
        blocks["broadcast"]()
        blocks["all_reduce bfloat16"]()


def functional(rank: int, watch: Watch) -> None:
    group = dist.group.WORLD.group_name
    ten, twenty = floats(10), floats(20)
    blocks: dict[str, tuple[Any, ...]] = {
        "all_reduce": (ten, "sum", group),
        "all_reduce_": (floats(10), "sum", group),
        "all_reduce_coalesced": ([ten, floats(3)], "sum", group),
        "all_gather_into_tensor": (ten, RANKS, group),
        "all_gather_into_tensor_coalesced": ([ten, floats(3)], RANKS, group),
        "reduce_scatter_tensor": (twenty, "sum", RANKS, group),
        "reduce_scatter_tensor_coalesced": ([twenty, floats(2)], "sum", RANKS, group),
        "all_to_all_single": (ten, [5, 5], [5, 5], group),
        "broadcast": (ten, 0, group),
    }
    for name, arguments in blocks.items():
        with watch(f"functional {name}"):
            given = getattr(OPERATORS, name)(*arguments)
            for tensor in given if isinstance(given, list) else [given]:
                OPERATORS.wait_tensor(tensor)
    with watch("functional inference"), torch.inference_mode():
        # Elsewhere torch takes these older operators apart before a mode sees them.
        old = torch.ops.c10d_functional.all_reduce(ten, "sum", "", [0, 1], RANKS)
        OPERATORS.wait_tensor(old)
    with watch("functional out"):
        OPERATORS.wait_tensor(OPERATORS.all_gather_into_tensor_out(ten, RANKS, group, out=twenty))


def exchange(rank: int, watch: Watch) -> None:
    other = 1 - rank
    sent, received = (floats(6), floats(4)) if rank == 0 else (floats(4), floats(6))
    with watch("batch_isend_irecv"):
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
        )
        for work in works:
            work.wait()
    with watch("send and recv"):
        if rank == 0:
            dist.send(sent, other)
        else:
            dist.recv(received)
    order = ["isend", "irecv"] if rank == 0 else ["irecv", "isend"]
    tensors = [sent, received] if rank == 0 else [received, sent]
    with watch("functional batch"):
        given = OPERATORS.batch_p2p_ops(
            order, [other] * 2, [0] * 2, tensors, dist.group.WORLD.group_name
        )
        for tensor in given:
            OPERATORS.wait_tensor(tensor)


def layers() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def forward_backward(name: str, model: nn.Module, rows: int, watch: Watch) -> None:
    inputs = torch.ones(rows, WIDTH, requires_grad=True)
    with watch(f"{name} forward"):
        loss = model(inputs).sum()
    with watch(f"{name} backward"):
        loss.backward()


def parallel(rank: int, watch: Watch) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    sharded = layers()
    for module in (*sharded, sharded):
        fully_shard(module, mesh=mesh)
    for module in sharded.modules():
        if isinstance(module, FSDPModule):
            # gloo has no PREMUL_SUM, which averages otherwise.
            module.set_force_sum_reduction_for_comms(True)
    forward_backward("fsdp", sharded, ROWS, watch)
    plans = {
        "tp": {"0": ColwiseParallel(), "1": RowwiseParallel()},
        "sp": {
            "0": ColwiseParallel(input_layouts=Shard(0)),
            "1": RowwiseParallel(output_layouts=Shard(0)),
        },
    }
    for name, plan in plans.items():
        rows = ROWS // RANKS if name == "sp" else ROWS
        forward_backward(name, parallelize_module(layers(), mesh, plan), rows, watch)
    forward_backward("ddp", DistributedDataParallel(layers()), ROWS, watch)


def recomputed(rank: int, watch: Watch) -> None:
    group = dist.group.WORLD.group_name
    x = floats(10).requires_grad_()

    def gather(x: torch.Tensor) -> torch.Tensor:
        return OPERATORS.wait_tensor(OPERATORS.all_gather_into_tensor(x, RANKS, group)).cos()

    with watch("recomputed"):
        checkpoint(gather, x, use_reentrant=False).sum().backward()
    with watch("autograd"):
        gathered = torch.ops._c10d_functional_autograd.all_gather_into_tensor(x, RANKS, group)
        OPERATORS.wait_tensor(gathered).sum().backward()


def compiled(rank: int, watch: Watch) -> None:
    group = dist.group.WORLD.group_name

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        watch.graphs.append("made")
        plain = graph.forward

        def run(*arguments: Any) -> Any:
            watch.graphs.append("run")
            return plain(*arguments)

        return run

    @torch.compile(backend=backend)
    def summed(x: torch.Tensor) -> torch.Tensor:
        return OPERATORS.wait_tensor(OPERATORS.all_reduce(x * 2, "sum", group)) + 1

    with watch("compiled"):
        summed(floats(10))
        summed(floats(10))


def work(rank: int, folder: str) -> None:
    """What a rank does: everything under our mode, then everything again under torch's."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    found = {}
    for mode in (CommunicationCounter, CommDebugMode):
        torch._dynamo.reset()
        watch = Watch(mode)
        for scene in (c10d, functional, exchange, parallel, recomputed, compiled):
            scene(rank, watch)
        found[mode.__name__] = [watch.calls, watch.bytes, watch.graphs]
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


@dataclass(frozen=True)
class Seen:
    """What one rank counted under both modes."""

    ours: dict[str, dict[str, int]]
    bytes: dict[str, dict[str, int]]
    graphs: list[str]
    torchs: dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """By rank, from one group of processes."""
    folder = tmp_path_factory.mktemp("comm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        mp.spawn(work, args=(str(folder),), nprocs=RANKS)
    found = [json.loads((folder / f"{rank}.json").read_bytes()) for rank in range(RANKS)]
    return [Seen(*f["CommunicationCounter"], f["CommDebugMode"][0]) for f in found]


COLLECTIVES = {
    "all_reduce": ("all_reduce", 40),
    "all_reduce bfloat16": ("all_reduce", 20),
    "all_gather": ("all_gather", 80),
    "all_gather list": ("all_gather", 80),
    "reduce_scatter": ("reduce_scatter", 80),
    "reduce_scatter list": ("reduce_scatter", 80),
    "all_to_all": ("all_to_all", 40),
    "broadcast": ("broadcast", 40),
    "reduce": ("reduce", 40),
    "barrier": ("barrier", 0),
    "functional all_reduce": ("all_reduce", 40),
    "functional all_reduce_": ("all_reduce", 40),
    "functional all_reduce_coalesced": ("all_reduce", 40 + 12),
    "functional all_gather_into_tensor": ("all_gather", 80),
    "functional all_gather_into_tensor_coalesced": ("all_gather", 80 + 24),
    "functional reduce_scatter_tensor": ("reduce_scatter", 80),
    "functional reduce_scatter_tensor_coalesced": ("reduce_scatter", 80 + 8),
    "functional all_to_all_single": ("all_to_all", 40),
    "functional broadcast": ("broadcast", 40),
    "functional inference": ("all_reduce", 40),
    "functional out": ("all_gather", 80),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_is_one_call_with_the_bytes_of_its_larger_side(
    seen: list[Seen], name: str
) -> None:
    kind, size = COLLECTIVES[name]
    for rank in seen:
        assert rank.ours[name] == {kind: 1}
        assert rank.bytes[name] == {kind: size}


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_rank_counts_its_own_tensors_so_the_root_has_more(seen: list[Seen], kind: str) -> None:
    assert [rank.ours[kind] for rank in seen] == [{kind: 1}] * RANKS
    assert [rank.bytes[kind] for rank in seen] == [{kind: 80}, {kind: 40}]


def test_calls_and_bytes_of_a_block_add_up_by_kind(seen: list[Seen]) -> None:
    for rank in seen:
        name = "two of a kind and one of another"
        assert rank.ours[name] == {"all_reduce": 2, "broadcast": 1}
        assert rank.bytes[name] == {"all_reduce": 40 + 20, "broadcast": 40}


@pytest.mark.parametrize("name", ["batch_isend_irecv", "functional batch"])
def test_what_is_sent_and_received_is_counted_once_on_each_side(
    seen: list[Seen], name: str
) -> None:
    assert [rank.ours[name] for rank in seen] == [{"send": 1, "recv": 1}] * RANKS
    assert [rank.bytes[name] for rank in seen] == [
        {"send": 24, "recv": 16},
        {"send": 16, "recv": 24},
    ]


def test_a_sender_counts_no_receive_and_a_receiver_from_any_source_no_send(
    seen: list[Seen],
) -> None:
    assert [rank.bytes["send and recv"] for rank in seen] == [{"send": 24}, {"recv": 24}]
    assert [rank.ours["send and recv"] for rank in seen] == [{"send": 1}, {"recv": 1}]


PARALLEL = {
    "fsdp forward": {"all_gather": (2, 2 * LAYER)},
    "fsdp backward": {"all_gather": (2, 2 * LAYER), "reduce_scatter": (2, 2 * LAYER)},
    "tp forward": {"all_reduce": (1, ACTIVATION)},
    "tp backward": {"all_reduce": (1, ACTIVATION)},
    "sp forward": {"all_gather": (1, ACTIVATION), "reduce_scatter": (1, ACTIVATION)},
    "sp backward": {"all_gather": (1, ACTIVATION), "reduce_scatter": (1, ACTIVATION)},
    "ddp backward": {"all_reduce": (1, 2 * LAYER)},
    "recomputed": {"all_gather": (2, 2 * 80), "reduce_scatter": (1, 80)},
    "autograd": {"all_gather": (1, 80), "reduce_scatter": (1, 80)},
}


@pytest.mark.parametrize("name", PARALLEL)
def test_what_a_parallel_model_communicates_is_seen_in_forward_and_in_backward(
    seen: list[Seen], name: str
) -> None:
    for rank in seen:
        assert rank.ours[name] == {kind: calls for kind, (calls, _) in PARALLEL[name].items()}
        assert rank.bytes[name] == {kind: size for kind, (_, size) in PARALLEL[name].items()}


def test_compiled_code_runs_compiled_and_what_it_communicates_is_seen(seen: list[Seen]) -> None:
    for rank in seen:
        assert rank.graphs == ["made", "run", "run"]
        assert rank.ours["compiled"] == {"all_reduce": 2}
        assert rank.bytes["compiled"] == {"all_reduce": 80}


def test_every_collective_that_torch_counts_is_counted_as_often(seen: list[Seen]) -> None:
    compared = set()
    for rank in seen:
        assert set(rank.ours) == set(rank.torchs)
        for name in set(rank.torchs) - OVERLOOKED_BY_TORCH:
            theirs: dict[str, int] = {}
            for operator, calls in rank.torchs[name].items():
                theirs[KINDS[operator]] = theirs.get(KINDS[operator], 0) + calls
            ours = {k: n for k, n in rank.ours[name].items() if k not in UNKNOWN_TO_TORCH}
            assert ours == theirs, name
            compared |= set(theirs)
    assert compared == set(KINDS.values())


def test_every_operator_that_torch_counts_has_its_kind() -> None:
    from torch.distributed.tensor.debug import _comm_mode

    known = CommDebugMode().comm_registry | _comm_mode.c10d_collective_ops
    names = {str(packet): packet._qualified_op_name for packet in known}
    reported = {name for name in names if not name.startswith("_c10d_functional")}
    assert reported == set(KINDS), "those of _c10d_functional are reported as c10d_functional"
    for name, qualified in names.items():
        plain = name.replace("_c10d_functional_autograd", "c10d_functional")
        assert kind_of(qualified) == KINDS[plain.replace("_c10d_functional", "c10d_functional")]


def test_torch_has_no_operator_of_a_kind_that_is_not_known_here() -> None:
    spaces = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
    schemas = (schema.name for schema in torch._C._jit_get_all_schemas())
    kinds = {kind_of(name) for name in schemas if name.startswith(spaces)}
    assert kinds == {
        *KINDS.values(),
        *UNKNOWN_TO_TORCH,
        "monitored_barrier",
        "batch_p2p_ops",
        None,
    }


@pytest.mark.parametrize(
    "name",
    [
        "_c10d_functional::wait_tensor",
        "_c10d_functional::_wrap_tensor_autograd",
        "c10d::check_for_nan",
        "_dtensor::mesh_get_process_group",
        "aten::gather",
    ],
)
def test_what_moves_nothing_is_no_call(name: str) -> None:
    assert kind_of(name) is None


def test_an_operator_that_nobody_knows_keeps_its_plain_name() -> None:
    assert kind_of("c10d::_rotate_") == "rotate"


def test_a_collective_of_which_only_the_shape_is_wanted_is_not_counted() -> None:
    with CommunicationCounter() as counter:
        OPERATORS.all_reduce(torch.ones(10, device="meta"), "sum", "0")
        with FakeTensorMode():
            OPERATORS.all_reduce(torch.ones(10), "sum", "0")
    assert not counter.calls
    assert not counter.bytes


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_operators_of_no_communication_and_of_higher_order_are_left_alone() -> None:
    tensors = [torch.randn(1, 1, 16, 16, generator=torch.manual_seed(i)) for i in range(3)]
    plain = flex_attention(*tensors)
    with CommunicationCounter() as counter:
        counted = flex_attention(*tensors)
    assert torch.equal(counted, plain)
    assert not counter.calls


def test_a_record_holds_what_was_counted_until_then() -> None:
    counter = CommunicationCounter()
    empty = counter.record(3)
    counter.calls["send"] += 2
    counter.bytes["send"] += 12
    assert empty == Communication(step=3, calls={}, bytes={})
    assert counter.record(7) == Communication(step=7, calls={"send": 2}, bytes={"send": 12})
    assert counter.record(7) == counter.record(7)


def test_what_is_done_outside_of_the_block_is_not_counted() -> None:
    counter = CommunicationCounter()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(floats(10))
        with counter:
            dist.all_reduce(floats(10))
        dist.all_reduce(floats(10))
        with counter:
            dist.all_reduce(floats(2))
    finally:
        dist.destroy_process_group()
    assert counter.record(1) == Communication(
        step=1, calls={"all_reduce": 2}, bytes={"all_reduce": 48}
    )
