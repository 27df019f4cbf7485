"""Operations on the CPU against itself: right ones pass, every wrong one fails its own check."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stages.environment_ops import LARGEST, NORM, _answer_checks
from tests.fake_training import cpu_plan
from trn_validate.operation import EXACT, OPERATIONS, OperationAnswer, OperationSpec
from trn_validate.workload import op_table, ops
from trn_validate.workload.op_table import TABLE, Operation
from trn_validate.workload.ops import answered, compare, measured

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a hook replaces is put back."""
    monkeypatch.setattr(ops, "on_device", ops.on_device)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    if hasattr(torch, "neuron"):
        del torch.neuron


def answer(name: str, *hooks: str) -> OperationAnswer:
    found = tuple(f"tests.defects.operations:{hook}" for hook in hooks)
    return answered(
        OperationSpec(name=name, operation=name, answer="unwritten", device="cpu", hooks=found)
    )


def said_no(found: OperationAnswer) -> list[str]:
    """What the checks that do not hold ask."""
    checks = _answer_checks(cpu_plan(), found.operation, found)
    assert checks
    return [c.name.removeprefix(f"{found.operation}: ") for c in checks if not c.passed]


def test_every_operation_that_is_owed_is_in_the_table() -> None:
    assert tuple(TABLE) == OPERATIONS
    assert set(OPERATIONS) > EXACT


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_cpu_agrees_with_itself(name: str) -> None:
    found = answer(name)
    assert said_no(found) == []
    assert (found.device, found.refused, found.asked) == ("cpu", "", "")
    assert len({one.what for one in found.compared}) == len(found.compared) >= 2


@pytest.mark.parametrize(
    ("name", "hook", "caught"),
    [
        ("matmul", "scaled", ["largest error", "error norm"]),
        ("matmul", "zero", ["largest error", "error norm", "degenerate results"]),
        ("matmul", "half_gradient", ["largest error", "error norm"]),
        ("matmul", "no_gradient", ["largest error", "error norm", "degenerate results"]),
        ("matmul", "low_precision", ["largest error", "error norm"]),
        ("matmul", "lower_type", ["largest error", "error norm", "degenerate results"]),
        ("softmax", "one_element", ["largest error", "error norm"]),
        ("softmax", "not_a_number", ["largest error", "error norm", "degenerate results"]),
        ("attention", "scaled", ["largest error", "error norm"]),
        ("attention", "constant", ["largest error", "error norm", "degenerate results"]),
        ("embedding", "half_gradient", ["largest error", "error norm"]),
        ("embedding", "shifted", ["largest error", "error norm"]),
        ("masked assignment", "shifted", ["largest error", "error norm"]),
        ("gather", "shifted", ["largest error", "error norm"]),
        ("scatter", "half_gradient", ["largest error", "error norm"]),
        ("topk", "other_indices", ["elements that differ"]),
        ("cumsum", "shifted", ["largest error", "error norm"]),
        ("cross entropy", "scaled", ["largest error", "error norm"]),
        ("rms norm", "no_gradient", ["largest error", "error norm", "degenerate results"]),
        ("adamw", "step_lost", ["largest error", "error norm", "degenerate results"]),
        ("adamw", "scaled", ["largest error", "error norm"]),
        ("whole numbers", "thirty_two_bits", ["elements that differ"]),
        ("round trip int64", "thirty_two_bits", ["elements that differ"]),
        ("round trip int64", "lower_type", ["degenerate results"]),
        ("round trip bfloat16", "zero", ["elements that differ", "degenerate results"]),
        ("round trip float32", "low_precision", ["elements that differ"]),
        ("topk", "refused", ["errors raised"]),
        ("topk", "fallen_back", ["fallbacks to the CPU"]),
    ],
)
def test_a_wrong_operation_fails_the_check_that_is_meant_for_it(
    name: str, hook: str, caught: list[str]
) -> None:
    assert said_no(answer(name, hook)) == caught


def test_a_check_names_dtype_and_tensor_of_the_worst() -> None:
    checks = _answer_checks(cpu_plan(), "matmul", answer("matmul", "no_gradient"))
    (degenerate,) = (c for c in checks if c.name.endswith("degenerate results"))
    assert "float32 gradient 1, seed 0 is zero" in degenerate.detail
    (worst,) = (c for c in checks if c.name.endswith("error norm"))
    assert worst.detail.startswith("float32 gradient 1")


def chunked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    parts = zip(x.split(70, 1), weight.split(70, 0), strict=True)
    return torch.stack([(a.float() @ b.float()) for a, b in parts]).sum(0).to(x.dtype)


def by_exponents(x: torch.Tensor) -> torch.Tensor:
    raised = (x.float() * 4 - (x.float() * 4).amax(-1, keepdim=True)).exp()
    return (raised / raised.sum(-1, keepdim=True)).to(x.dtype)


def by_products(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = (query.float() @ key.float().mT) / query.shape[-1] ** 0.5
    rows = query.shape[-2]
    later = torch.ones(rows, rows).triu(1).bool()
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    return (weights @ value.float()).to(query.dtype)


def by_mean(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.float()).to(
        x.dtype
    )


def by_halves(x: torch.Tensor) -> torch.Tensor:
    first, second = x.float().split(65, -1)
    first = first.cumsum(-1)
    return torch.cat([first, first[:, -1:] + second.cumsum(-1)], -1).to(x.dtype)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("matmul", chunked),
        ("softmax", by_exponents),
        ("attention", by_products),
        ("rms norm", by_mean),
        ("cumsum", by_halves),
    ],
)
def test_another_right_way_to_compute_it_is_not_flagged_in_10_seeds(
    monkeypatch: pytest.MonkeyPatch, name: str, other: Callable[..., Any]
) -> None:
    """What a device may do: other orders of summation, or float32 between bfloat16."""
    table = TABLE[name]
    changed = Operation(other, table.floats, table.others, table.depth)

    def on_device(operation: Operation, floats: Any, others: Any, device: Any) -> Any:
        exact = floats[0].dtype == torch.float64
        return ops._results(operation if exact else changed, floats, others)

    monkeypatch.setattr(ops, "on_device", on_device)
    monkeypatch.setattr(ops, "SEEDS", tuple(range(10)))
    _, found = measured(name, CPU)
    assert len(found) >= 40
    assert [one for one in found if not one.largest <= LARGEST or not one.norm <= NORM] == []
    assert any(one.largest not in (0.0, 1.0) for one in found), "it was another computation"


def test_inputs_follow_from_the_seed_and_order_survives_bfloat16() -> None:
    first, _ = op_table.made(TABLE["topk"], 0)
    again, _ = op_table.made(TABLE["topk"], 0)
    other, _ = op_table.made(TABLE["topk"], 1)
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    assert torch.equal(first[0].bfloat16().double(), first[0])
    assert all(row.unique().numel() == row.numel() for row in first[0])


def test_nan_is_worse_than_every_limit_and_equals_nothing() -> None:
    gold = torch.tensor([1.0, 2.0], dtype=torch.float64)
    nan = torch.tensor([1.0, math.nan])
    assert math.isnan(compare("x", nan, gold.float(), gold).largest)
    assert compare("x", nan, nan.clone(), gold, exact=True).differing == 1


def test_the_vendor_s_tracker_is_asked_before_the_device_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleared: list[bool] = []
    package = SimpleNamespace(
        get_fallback_ops=lambda: {"aten::sort", "aten::nonzero"},
        clear_op_tracking=lambda: cleared.append(True),
    )
    monkeypatch.setitem(sys.modules, "torch_neuronx", package)
    found = answer("cumsum")
    assert (found.asked, found.fallbacks) == ("torch_neuronx", ("aten::nonzero", "aten::sort"))
    assert cleared == [True]
    assert said_no(found) == ["fallbacks to the CPU"]


def test_an_answer_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = OperationSpec(
        name="cumsum", operation="cumsum", answer=str(tmp_path / "a.json"), device="cpu"
    )
    file = tmp_path / "spec.json"
    file.write_text(spec.model_dump_json())
    monkeypatch.setattr("sys.argv", ["ops", "--spec", str(file)])
    ops.main()
    found = OperationAnswer.model_validate_json((tmp_path / "a.json").read_bytes())
    assert found.operation == "cumsum" and found.compared
