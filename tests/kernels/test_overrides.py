"""Real models of torchtitan, tiny, with and without the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from trn_validate.errors import KernelError
from trn_validate.kernels import expert_mlp, launches, rmsnorm, swiglu
from trn_validate.workload import device

device.install("cpu")

from torchtitan.config.override import OverrideConfig, apply_overrides  # noqa: E402 # after install
from torchtitan.models.qwen3 import model_registry  # noqa: E402

from trn_validate.kernels.overrides import (  # noqa: E402
    KernelGroupedExperts,
    KernelRMSNorm,
    RMSNorm,
    gate_and_up,
)

HERE = "trn_validate.kernels.overrides"
CAUSAL = "trn_validate.workload.attention.causal"
LOSS, GRADIENT = 5e-6, 1e-5
"""The floors of docs for float32: absolute, and relative L2."""


def built(flavor: str, *names: str, layers: int = 2) -> torch.nn.Module:
    """The model with those overrides, its weights the same whatever they are."""
    config = model_registry(flavor).model
    config.layers = config.layers[:layers]
    for layer in config.layers:
        if layer.moe is not None:
            layer.moe.routed_experts.inner_experts.hidden_dim = 24
    imports = [CAUSAL, *(f"{HERE}.{name}" for name in names)]
    apply_overrides(OverrideConfig(imports=imports), config)
    torch.manual_seed(0)
    model: torch.nn.Module = config.build()
    model.init_weights(buffer_device=torch.device("cpu"))  # type: ignore[operator] # torchtitan's
    return model


def step(model: torch.nn.Module) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one batch."""
    tokens = torch.randint(0, 2048, (2, 40), generator=torch.Generator().manual_seed(1))
    logits = model(tokens, positions=torch.arange(40).expand(2, 40))
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.roll(-1, 1).flatten())
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients


def times(some: dict[str, int], count: int) -> dict[str, int]:
    return {name: count * number for name, number in some.items()}


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize(
    ("flavor", "without", "kernels", "launched"),
    [
        (
            "debugmodel",
            (),
            ("rmsnorm", "swiglu"),
            times(rmsnorm.LAUNCHES, 9) | times(swiglu.LAUNCHES, 2),
        ),
        (
            "debugmodel_moe",
            ("plain_experts",),
            ("rmsnorm", "expert_mlp"),
            times(rmsnorm.LAUNCHES, 9) | times(expert_mlp.LAUNCHES, 2),
        ),
    ],
    ids=["dense", "experts"],
)
def test_a_model_with_the_kernels_has_the_loss_and_the_gradients_of_one_without(
    flavor: str, without: tuple[str, ...], kernels: tuple[str, ...], launched: dict[str, int]
) -> None:
    loss, gradients = step(built(flavor, *without))
    assert launches.counts() == {}
    its_loss, its_gradients = step(built(flavor, *kernels))
    assert launches.counts() == launched
    assert abs(its_loss - loss) <= LOSS
    assert its_gradients.keys() == gradients.keys() and len(gradients) > 15
    floor = 1e-6 * torch.stack([one.norm() for one in gradients.values()]).norm()
    for name, gradient in gradients.items():
        error = (its_gradients[name] - gradient).norm() / torch.maximum(gradient.norm(), floor)
        assert error <= GRADIENT, name


def test_parameters_keep_their_names_and_their_start() -> None:
    stock = built("debugmodel", layers=1).state_dict()
    ours = built("debugmodel", "rmsnorm", "swiglu", layers=1).state_dict()
    assert ours.keys() == stock.keys()
    for name, value in stock.items():
        assert torch.equal(ours[name], value)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("low", ["x", "weight"])
def test_a_norm_of_two_dtypes_gives_the_dtype_that_torch_gives(low: str) -> None:
    stock = RMSNorm.Config(normalized_shape=16).build()
    ours = KernelRMSNorm.Config(normalized_shape=16).build()
    x = torch.randn(3, 16)
    for module in (stock, ours):
        torch.nn.init.ones_(module.weight)
    if low == "x":
        x = x.bfloat16()
    else:
        stock, ours = stock.bfloat16(), ours.bfloat16()
    found, its = ours(x), stock(x)
    assert found.dtype == its.dtype == x.dtype
    # One rounding to bfloat16 apart at most.
    assert ((found - its).abs() <= 2.0**-7 * its.abs() + 1e-6).all()


def test_a_norm_without_a_weight_is_an_error() -> None:
    with pytest.raises(KernelError, match="without a weight"):
        KernelRMSNorm.Config(normalized_shape=4, elementwise_affine=False).build()(torch.ones(2, 4))


def test_experts_compute_in_the_dtype_of_their_rows() -> None:
    module = KernelGroupedExperts.Config(dim=8, hidden_dim=6, num_experts=2).build()
    for one in module.parameters():
        torch.nn.init.normal_(one)
    counts = torch.tensor([3.0, 2.0])
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(5, 8).to(dtype)
        weights = [one.to(dtype) for one in (module.w1_EFD, module.w2_EDF, module.w3_EFD)]
        found = module(x, counts)
        assert found.dtype == dtype
        assert torch.equal(found, expert_mlp.expert_mlp(x, counts.int(), *weights))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def norm_on(mesh: DeviceMesh) -> Any:
    module = KernelRMSNorm.Config(normalized_shape=8).build()
    weight = DTensor.from_local(torch.rand(8) + 0.5, mesh, [Replicate()])
    module.weight = torch.nn.Parameter(weight)
    return module


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
def test_the_gradient_reaches_what_is_behind_a_collective_that_still_runs(
    mesh: DeviceMesh, placement: Any
) -> None:
    module, values = norm_on(mesh), torch.randn(4, 6, 8)
    x = DTensor.from_local(AsyncCollectiveTensor(values), mesh, [placement]).requires_grad_()
    found = module(x)
    assert found.placements == (placement,)
    found.to_local().square().sum().backward()
    local = values.clone().requires_grad_()
    rmsnorm.rmsnorm(local, module.weight.to_local().detach(), module.eps).square().sum().backward()
    assert x.grad is not None and local.grad is not None
    assert torch.equal(x.grad.to_local(), local.grad)
    parts = Partial() if placement.is_shard() else Replicate()
    assert module.weight.grad.placements == (parts,)


@pytest.mark.parametrize("placement", [Shard(1), Shard(-1), Partial()], ids=str)
def test_a_layout_that_splits_what_the_norm_sums_over_is_an_error(
    mesh: DeviceMesh, placement: Any
) -> None:
    x = DTensor.from_local(torch.randn(4, 8), mesh, [placement])
    with pytest.raises(KernelError, match="rows that are split"):
        norm_on(mesh)(x)
    assert launches.counts() == {}


def test_a_norm_of_a_dtensor_by_a_plain_weight_is_an_error(mesh: DeviceMesh) -> None:
    module = KernelRMSNorm.Config(normalized_shape=8).build()
    with pytest.raises(KernelError, match="by a weight"):
        module(DTensor.from_local(torch.randn(4, 8), mesh, [Shard(0)]))


@pytest.mark.parametrize("other", [Partial(), Shard(0)], ids=str)
def test_a_gate_and_an_up_that_do_not_fit_are_an_error(mesh: DeviceMesh, other: Any) -> None:
    gate = DTensor.from_local(torch.randn(2, 4), mesh, [Partial()])
    up = DTensor.from_local(torch.randn(2, 4), mesh, [other])
    with pytest.raises(KernelError, match="laid out differently, or in partial sums"):
        gate_and_up(gate, up)


def test_gate_and_up_keep_their_layout(mesh: DeviceMesh) -> None:
    gate, up = (DTensor.from_local(torch.randn(2, 4), mesh, [Shard(1)]) for _ in range(2))
    found = gate_and_up(gate, up)
    assert isinstance(found, DTensor) and found.placements == (Shard(1),)
    assert torch.equal(found.to_local(), swiglu.swiglu(gate.to_local(), up.to_local()))
