"""What is kept of gradients and parameters, and how weights are perturbed."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Literal, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from trn_validate.records import Captured, Moment
from trn_validate.workload.capture import SKETCH_WIDTH, capture, perturb, plain_name, sketch


class Small(nn.Module):
    """Two layers, the head tied to the first if asked, and a parameter that nothing uses."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Linear(3, 4, bias=False)
        self.head = nn.Linear(3, 4, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.unused = nn.Parameter(torch.ones(2))


@pytest.fixture
def model() -> Small:
    torch.manual_seed(1)
    model = Small()
    (model.embedding(torch.ones(3)) * model.head(torch.arange(3.0))).sum().backward()
    return model


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("layers.0._orig_mod.wq.weight", "layers.0.wq.weight"),
        ("layers.1._checkpoint_wrapped_module.norm.weight", "layers.1.norm.weight"),
        ("_orig_mod.layers.1._checkpoint_wrapped_module.w", "layers.1.w"),
        ("norm.weight", "norm.weight"),
    ],
)
def test_a_name_loses_what_wrappers_put_into_it(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_a_file_holds_every_parameter_with_its_norm_and_digest(
    model: Small, tmp_path: Path
) -> None:
    kept = capture("start", [model], mode="full", stage=1, folder=tmp_path)
    assert kept.file == "start.stage-1.safetensors"
    tensors = load_file(tmp_path / kept.file)
    assert list(kept.norms) == ["unused", "embedding.weight", "head.weight"]
    assert set(tensors) == set(kept.norms) == set(kept.digests)
    for name, parameter in model.named_parameters():
        assert torch.equal(tensors[name], parameter)
        assert kept.norms[name] == pytest.approx(float(parameter.detach().norm()))
        content = parameter.detach().numpy().tobytes()
        assert kept.digests[name] == hashlib.sha256(content).hexdigest()


def test_gradients_are_kept_and_a_parameter_without_one_is_named(
    model: Small, tmp_path: Path
) -> None:
    kept = capture("gradient", [model], mode="full", stage=0, folder=tmp_path)
    assert kept.absent == ("unused",)
    tensors = load_file(tmp_path / "gradient.stage-0.safetensors")
    assert model.head.weight.grad is not None
    assert torch.equal(tensors["head.weight"], model.head.weight.grad)
    assert "unused" not in kept.norms


def test_a_weight_that_is_frozen_owes_no_gradient(model: Small) -> None:
    model.unused.requires_grad_(False)
    kept = capture("gradient", [model], mode="full", stage=0, folder=None)
    assert kept.absent == ()
    assert "unused" not in kept.norms


def test_a_rank_that_writes_no_file_records_the_same(model: Small, tmp_path: Path) -> None:
    writes = capture("start", [model], mode="full", stage=0, folder=tmp_path)
    silent = capture("start", [model], mode="full", stage=0, folder=None)
    assert silent.file is None
    assert (silent.norms, silent.digests) == (writes.norms, writes.digests)


def test_a_tied_weight_is_kept_once_under_its_first_name() -> None:
    kept = capture("start", [Small(tied=True)], mode="full", stage=0, folder=None)
    assert list(kept.norms) == ["unused", "embedding.weight"]


@pytest.mark.parametrize("mode", ["full", "sketch"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3, 4)])
def test_a_parameter_of_any_shape_is_kept_as_it_is(
    tmp_path: Path, mode: Literal["full", "sketch"], shape: tuple[int, ...]
) -> None:
    holder = nn.ParameterList([nn.Parameter(torch.full(shape, 2.5))])
    kept = capture("start", [holder], mode=mode, stage=0, folder=tmp_path)
    (tensor,) = load_file(tmp_path / "start.stage-0.safetensors").values()
    assert torch.equal(tensor, holder[0])
    assert kept.norms == {"0": pytest.approx(2.5 * tensor.numel() ** 0.5)}


def test_a_tensor_is_kept_as_it_lies_in_no_other_order_than_its_own(tmp_path: Path) -> None:
    straight = nn.ParameterList([nn.Parameter(torch.arange(6.0).view(2, 3))])
    turned = nn.ParameterList([nn.Parameter(torch.arange(6.0).view(2, 3).t().contiguous().t())])
    assert not turned[0].is_contiguous()
    one, other = (
        capture("start", [holder], mode="full", stage=0, folder=tmp_path / name)
        for name, holder in (("straight", straight), ("turned", turned))
    )
    assert one.digests == other.digests
    (tensor,) = load_file(tmp_path / "turned/start.stage-0.safetensors").values()
    assert torch.equal(tensor, straight[0])


def test_any_single_bit_of_a_weight_changes_its_digest_and_no_other() -> None:
    torch.manual_seed(5)
    holder = nn.ParameterList([nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))])
    before = capture("start", [holder], mode="full", stage=0, folder=None).digests
    with torch.no_grad():
        holder[1].view(torch.int32)[2] ^= 1
    after = capture("start", [holder], mode="full", stage=0, folder=None).digests
    assert before["0"] == after["0"]
    assert before["1"] != after["1"]


def test_a_bfloat16_gradient_is_kept_as_float32_without_loss(tmp_path: Path) -> None:
    holder = nn.ParameterList([nn.Parameter(torch.tensor([0.1, -3.0]).bfloat16())])
    kept = capture("end", [holder], mode="full", stage=0, folder=tmp_path)
    (tensor,) = load_file(tmp_path / "end.stage-0.safetensors").values()
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor.bfloat16(), holder[0])
    assert list(kept.norms) == ["0"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_kept_and_its_norm_says_so(value: float) -> None:
    holder = nn.ParameterList([nn.Parameter(torch.ones(2))])
    holder[0].grad = torch.tensor([1.0, value])
    kept = capture("gradient", [holder], mode="full", stage=0, folder=None)
    assert not math.isfinite(kept.norms["0"])
    assert Captured.model_validate_json(kept.model_dump_json()).norms.keys() == kept.norms.keys()


def test_looking_changes_no_weight_and_no_gradient(model: Small, tmp_path: Path) -> None:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    for moment in get_args(Moment):
        capture(moment, [model], mode="sketch", stage=0, folder=tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_the_parts_of_a_pipeline_stage_are_kept_together(model: Small) -> None:
    both = capture("start", [model, nn.Linear(2, 2)], mode="full", stage=0, folder=None)
    assert list(both.norms)[-2:] == ["weight", "bias"]


def test_a_sketch_stands_for_what_is_larger_than_it(tmp_path: Path) -> None:
    torch.manual_seed(2)
    large = nn.Linear(64, 64)
    kept = capture("end", [large], mode="sketch", stage=0, folder=tmp_path)
    tensors = load_file(tmp_path / "end.stage-0.safetensors")
    assert tensors["weight"].shape == (SKETCH_WIDTH,)
    assert torch.equal(tensors["bias"], large.bias)
    assert kept.norms["weight"] == pytest.approx(float(large.weight.detach().norm()))


def test_a_sketch_is_linear_and_depends_on_the_name_alone() -> None:
    torch.manual_seed(3)
    a, b = torch.randn(3000), torch.randn(3000)
    together = sketch("w", a + b)
    assert torch.allclose(together, sketch("w", a) + sketch("w", b), rtol=0.0, atol=1e-5)
    assert torch.equal(sketch("w", a), sketch("w", a))
    assert not torch.equal(sketch("w", a), sketch("v", a))


def test_the_norm_of_a_sketch_is_that_of_the_tensor_within_a_few_percent() -> None:
    torch.manual_seed(4)
    tensor = torch.randn(50_000)
    ratios = torch.stack([sketch(f"w{n}", tensor).norm() / tensor.norm() for n in range(40)])
    assert abs(float(ratios.mean()) - 1) < 0.02
    assert float(ratios.std()) < 0.05


def test_a_fault_in_one_column_is_seen_though_its_entries_lie_a_power_of_two_apart() -> None:
    fault = torch.zeros(1024, 256)
    fault[:, 7] = 1.0
    ratios = [float(sketch(f"w{n}", fault).norm() / fault.norm()) for n in range(40)]
    assert min(ratios) > 0.5
    assert max(ratios) < 1.5


@pytest.mark.parametrize("width", [64, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("rows", [512, 2048])
def test_a_fault_in_one_column_keeps_its_size_whatever_power_of_two_the_width_is(
    width: int, rows: int
) -> None:
    fault = torch.zeros(rows, width)
    fault[:, width // 3] = 1.0
    ratio = float(sketch("layers.0.wq.weight", fault).norm() / fault.norm())
    assert ratio == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("place", [0, 1, SKETCH_WIDTH - 1, SKETCH_WIDTH, 5000])
def test_the_sign_of_an_entry_depends_on_its_place_and_not_on_the_length(place: int) -> None:
    def single(length: int) -> torch.Tensor:
        tensor = torch.zeros(length)
        tensor[place] = 1.0
        return sketch("w", tensor)

    alone = single(place + 1)
    assert float(alone.abs().sum()) == abs(float(alone[place % SKETCH_WIDTH])) == 1.0
    assert torch.equal(single(place + 4321), alone)


def test_signs_are_balanced_and_differ_between_names() -> None:
    ones = torch.ones(SKETCH_WIDTH)
    one, other = sketch("layers.0.wq.weight", ones), sketch("layers.1.wq.weight", ones)
    # Half of 1021 fair coins, within five standard deviations.
    for signs in (one, other, one * other):
        assert set(signs.tolist()) == {-1.0, 1.0}
        assert abs(float(signs.sum())) < 5 * SKETCH_WIDTH**0.5


def test_the_square_of_a_sketch_s_norm_has_that_of_the_tensor_as_its_mean() -> None:
    torch.manual_seed(6)
    tensor = torch.randn(20, 1024) * torch.logspace(0, 2, 20).unsqueeze(1)
    whole = float(tensor.double().square().sum())
    ratios = [float(sketch(f"w{n}", tensor).square().sum()) / whole for n in range(200)]
    # Each has a standard deviation of at most sqrt(2 / 1021); the mean of 200, a fourteenth.
    deviation = (2 / SKETCH_WIDTH) ** 0.5
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=5 * deviation / 200**0.5)
    assert max(abs(ratio - 1) for ratio in ratios) < 5 * deviation


def test_the_distance_of_two_tensors_is_that_of_their_sketches() -> None:
    torch.manual_seed(7)
    tensor = torch.randn(300, 1024)
    off = tensor + 1e-4 * torch.randn(300, 1024)
    distance = float((sketch("w", off) - sketch("w", tensor)).norm())
    assert distance == pytest.approx(float((off - tensor).norm()), rel=0.1)


def test_a_sketch_reaches_over_the_end_of_a_chunk() -> None:
    tensor = torch.zeros(SKETCH_WIDTH * 4096 + 5)
    tensor[-1] = 3.0
    assert float(sketch("w", tensor).norm()) == 3.0


def weights(values: list[float]) -> nn.ParameterList:
    return nn.ParameterList([nn.Parameter(torch.tensor(values))])


def test_every_float32_weight_moves_to_a_neighbour_and_a_zero_stays() -> None:
    # Just below a power of two and in between; at a power itself the lower neighbour is nearer.
    values = [0.75, -0.3, 1e-20, 1.5, -7.3e5, 0.0]
    before = torch.tensor(values)
    holder = weights(values)
    perturb([holder], torch.float32, 1)
    after = holder[0].detach()
    up = torch.nextafter(before, torch.tensor(torch.inf))
    down = torch.nextafter(before, torch.tensor(-torch.inf))
    assert torch.equal((after == up) | (after == down), before != 0)
    assert after[-1] == 0.0


@given(st.floats(2**-20, 2**20, width=32), st.sampled_from([-1, 1]), st.integers(0, 99))
def test_a_float32_weight_moves_by_one_unit_in_its_last_place(
    size: float, sign: int, seed: int
) -> None:
    before = torch.tensor([sign * size])
    holder = weights([sign * size])
    perturb([holder], torch.float32, seed)
    away = torch.nextafter(before, before * math.inf)
    # The unit of a power of two is that of the values above it: two neighbours below.
    assert torch.equal((holder[0].detach() - before).abs(), (away - before).abs())


@given(st.floats(2**-20, 2**20, width=32), st.sampled_from([-1, 1]), st.integers(0, 99))
def test_a_bfloat16_weight_moves_to_its_neighbour_in_bfloat16(
    size: float, sign: int, seed: int
) -> None:
    short = torch.tensor([sign * size]).bfloat16()
    holder = weights(short.float().tolist())
    perturb([holder], torch.bfloat16, seed)
    after = holder[0].detach()
    assert torch.equal(after.bfloat16().float(), after)
    places = int(after.bfloat16().view(torch.int16)) - int(short.view(torch.int16))
    power = int(short.view(torch.int16)) & 0x7F == 0
    # The lower neighbours of a power of two are half a unit apart.
    assert abs(places) == 1 or (power and places == -2)


def test_weights_are_moved_up_as_often_as_down() -> None:
    holder = weights([1.5] * 10_000)
    perturb([holder], torch.float32, 1)
    # 10,000 fair coins, within five standard deviations.
    assert abs(int((holder[0] > 1.5).sum()) - 5000) < 250


def test_zeros_stay_and_what_is_no_number_stays_none() -> None:
    holder = weights([0.0, -0.0, math.inf, -math.inf, math.nan])
    perturb([holder], torch.float32, 1)
    after = holder[0].detach()
    assert after[:4].tolist() == [0.0, -0.0, math.inf, -math.inf]
    assert math.copysign(1, float(after[1])) == -1
    assert bool(after[4].isnan())


def test_every_part_and_a_tied_weight_once_is_moved() -> None:
    torch.manual_seed(8)
    first, second = Small(tied=True), nn.Linear(2, 2)
    parts: list[nn.Module] = [first, second]
    before = [p.detach().clone() for part in parts for p in part.parameters()]
    perturb(parts, torch.float32, 1)
    after = [p.detach() for part in parts for p in part.parameters()]
    assert len(before) == 4
    for old, new in zip(before, after, strict=True):
        units = torch.nextafter(old.abs(), torch.tensor(math.inf)) - old.abs()
        assert torch.equal((new - old).abs(), units)
    assert first.head.weight is first.embedding.weight


def test_a_parameter_still_asks_for_its_gradient_after_it_was_moved(model: Small) -> None:
    perturb([model], torch.float32, 1)
    assert all(p.requires_grad and p.grad_fn is None for p in model.parameters())


def test_a_bfloat16_step_is_seen_by_a_forward_that_computes_in_bfloat16() -> None:
    before = torch.tensor([0.75, -0.3, 1.5, 300.0]).bfloat16().float()
    holder = weights(before.tolist())
    perturb([holder], torch.bfloat16, 1)
    after = holder[0].detach()
    assert torch.equal(after.bfloat16().float(), after), "a neighbour in bfloat16"
    assert bool((after != before).all())
    # 8 bits of significand: a step is 2**-8 to 2**-7 of the value.
    step = (after - before).abs() / before.abs()
    assert bool(((step >= 2**-8) & (step <= 2**-7)).all())


def test_the_signs_follow_from_the_seed() -> None:
    values = torch.linspace(1.1, 1.9, 64).tolist()
    moved = []
    for seed in (1, 1, 2):
        holder = weights(values)
        perturb([holder], torch.float32, seed)
        moved.append(holder[0].detach())
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0], moved[2])
