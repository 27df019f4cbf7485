from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torchtitan.components.optimizer import default_adamw

from trn_validate.workload.state import digest, state_digests

PARTS = {"model", "optimizer", "scheduler", "data", "rng"}


def tensor(**changes: Any) -> torch.Tensor:
    return torch.arange(6, **({"dtype": torch.float32} | changes))


def trainer() -> Any:
    """What the digests are taken of: a small model with torchtitan's own optimizer."""
    torch.manual_seed(7)
    model = nn.Linear(4, 3)
    optimizers = default_adamw(lr=0.1).build(model_parts=[model])
    counter = {"step": 0}
    return SimpleNamespace(
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=SimpleNamespace(state_dict=lambda: dict(counter)),
        dataloader=SimpleNamespace(state_dict=lambda: {"global_samples": counter["step"] * 4}),
        counter=counter,
    )


def take_step(made: Any) -> None:
    made.model_parts[0](torch.ones(2, 4)).sum().backward()
    made.optimizers.step()


def changed_parts(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert set(before) == set(after) == PARTS
    return {part for part in PARTS if before[part] != after[part]}


def test_the_order_of_a_mapping_does_not_matter() -> None:
    first = OrderedDict([("a", tensor()), ("b", {"c": 1, "d": 2})])
    second = OrderedDict([("b", {"d": 2, "c": 1}), ("a", tensor())])
    assert digest(first) == digest(second)


def test_the_order_of_a_list_matters() -> None:
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})


def test_a_list_and_a_tuple_are_alike_since_a_checkpoint_does_not_tell_them_apart() -> None:
    assert digest({"a": [1, (2, [])]}) == digest({"a": (1, [2, ()])})


def test_any_single_bit_of_a_tensor_matters() -> None:
    base = digest({"a": tensor()})
    seen = {base}
    for bit in range(6 * 32):
        plain = tensor().view(torch.uint8).clone()
        plain[bit // 8] ^= 1 << (bit % 8)
        seen.add(digest({"a": plain.view(torch.float32)}))
    assert len(seen) == 6 * 32 + 1


def test_two_zeros_and_two_nans_of_other_bits_are_told_apart() -> None:
    zeros = {digest({"a": torch.tensor([value])}) for value in (0.0, -0.0)}
    assert len(zeros) == 2
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert digest({"a": nans[:1]}) != digest({"a": nans[1:]})
    assert digest({"a": nans[:1]}) == digest({"a": nans[:1].clone()})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": tensor()}, {"b": tensor()}),
        ({"a": tensor()}, {"a": tensor(dtype=torch.int32)}),
        ({"a": torch.zeros(4)}, {"a": torch.zeros(4, dtype=torch.int32)}),
        ({"a": torch.zeros(4)}, {"a": torch.zeros(8, dtype=torch.bfloat16)}),
        ({"a": tensor()}, {"a": tensor().view(2, 3)}),
        ({"a": torch.zeros(4)}, {"a": torch.zeros(5)}),
        ({"a": torch.zeros(0)}, {"a": torch.zeros(0, 2)}),
        ({"a": torch.tensor(1.0)}, {"a": torch.tensor([1.0])}),
        ({"a": torch.tensor(1.0)}, {"a": 1.0}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ({"a": {}}, {}),
        ({"a": []}, {}),
        ({"a": {}}, {"a": []}),
        ({"a": 1, "b": 2}, {"a1/b": 2}),
        ({"a": "x", "b": 2}, {"a": "x'/b2"}),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
        ({"a": [1]}, {"a": {"1": 1}}),
    ],
    ids=str,
)
def test_two_states_that_differ_in_key_type_or_shape_are_told_apart(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert digest(one) != digest(other)


def test_a_tensor_is_judged_by_its_values_and_not_by_how_it_lies_in_memory() -> None:
    wide = torch.arange(12, dtype=torch.float32).view(3, 4)
    assert digest({"a": wide.t()}) == digest({"a": wide.t().contiguous()})
    assert digest({"a": wide[:, 1]}) == digest({"a": wide[:, 1].clone()})
    assert digest({"a": nn.Parameter(wide)}) == digest({"a": wide})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64, torch.float64])
def test_tensors_of_every_dtype_have_a_digest(dtype: torch.dtype) -> None:
    assert len(digest({"a": torch.ones(3, dtype=dtype)})) == 64


def test_looking_changes_nothing_and_gives_the_same_again() -> None:
    made = trainer()
    first = state_digests(made)
    assert state_digests(made) == first
    assert set(first) == PARTS
    assert all(len(value) == 64 for value in first.values())


def test_looking_leaves_the_state_of_the_optimizer_as_it_is() -> None:
    made = trainer()
    (optimizer,) = made.optimizers
    assert not optimizer.state
    state_digests(made)
    assert not optimizer.state, "an optimizer that took no step has no state"
    take_step(made)
    before = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for state in optimizer.state.values()
        for name, value in state.items()
    }
    weight = made.model_parts[0].weight.clone()
    state_digests(made)
    after = {name: value for state in optimizer.state.values() for name, value in state.items()}
    assert before
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(weight, made.model_parts[0].weight)


def test_a_training_step_changes_the_model_and_the_optimizer_alone() -> None:
    made = trainer()
    before = state_digests(made)
    take_step(made)
    assert changed_parts(before, state_digests(made)) == {"model", "optimizer"}


def test_a_learning_rate_belongs_to_the_optimizer() -> None:
    made = trainer()
    before = state_digests(made)
    (optimizer,) = made.optimizers
    optimizer.param_groups[0]["lr"] = 0.2
    assert changed_parts(before, state_digests(made)) == {"optimizer"}


def test_a_buffer_belongs_to_the_model() -> None:
    made = trainer()
    made.model_parts[0].register_buffer("count", torch.zeros(1))
    before = state_digests(made)
    made.model_parts[0].count += 1
    assert changed_parts(before, state_digests(made)) == {"model"}


def test_a_tick_of_the_counter_changes_scheduler_and_data() -> None:
    made = trainer()
    before = state_digests(made)
    made.counter["step"] = 1
    assert changed_parts(before, state_digests(made)) == {"scheduler", "data"}


def test_a_number_that_is_drawn_changes_the_generator_alone() -> None:
    made = trainer()
    before = state_digests(made)
    torch.rand(1)
    assert changed_parts(before, state_digests(made)) == {"rng"}


def test_the_parts_of_a_pipeline_are_told_apart() -> None:
    made = trainer()
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    made.model_parts = [first, second]
    before = state_digests(made)
    made.model_parts = [second, first]
    assert changed_parts(before, state_digests(made)) == {"model"}
