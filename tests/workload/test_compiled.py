from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._dynamo.eval_frame import set_guard_complete_hook

from trn_validate.records import Compilation
from trn_validate.spec import CompileChoice
from trn_validate.workload import compiled
from trn_validate.workload.compiled import LOSS, CompileWatch, compile_fields

WIDTH, BATCH, LAYERS = 4, 8, 2
CALLS = LAYERS + 1
"""Compiled calls of one step: the blocks and the loss."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.compiler.set_stance("default")
    assert set_guard_complete_hook(None) is None, "a watch left its hook behind"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.inner(x))


class Model(nn.Module):
    """Blocks that are compiled one by one and whole, as torchtitan does."""

    def __init__(self, backend: Any = "eager", kind: type[nn.Module] = Block) -> None:
        super().__init__()
        # What enters the first block has a gradient, as what enters the others.
        self.embedding = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleDict({str(i): kind() for i in range(LAYERS)})
        for block in self.layers.values():
            block.compile(backend=backend, fullgraph=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.layers.values():
            x = block(x)
        return x


def squares(pred: torch.Tensor, name: str = "") -> torch.Tensor:
    """A text is a constant to Dynamo, so each other one needs code of its own."""
    return pred.square().sum() * (1 + len(name))


class Loss:
    """The function compiled, and not as one graph only, as torchtitan does."""

    def __init__(self, fn: Callable[..., torch.Tensor] = squares, backend: Any = "eager") -> None:
        self.fn = torch.compile(fn, backend=backend)


class Chunked:
    """A loss that calls another one."""

    def __init__(self, loss_fn: Loss) -> None:
        self.loss_fn = loss_fn


def train(
    watch: CompileWatch, model: Model, loss: Loss, batches: list[int], first: int = 1
) -> None:
    """One step for each batch size."""
    for step, batch in enumerate(batches, first):
        watch.begin(step)
        loss.fn(model(torch.randn(batch, WIDTH))).backward()


def watched(model: Model, loss: Loss, batches: list[int]) -> Compilation:
    watch = CompileWatch([model], Chunked(loss))
    train(watch, model, loss, batches)
    return watch.record()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_steps_of_one_shape_make_one_graph_for_all_blocks_and_run_it_each_time(
    backend: str,
) -> None:
    begun = time.monotonic()
    record = watched(Model(backend), Loss(backend=backend), [BATCH] * 3)
    assert 0.0 < record.seconds < time.monotonic() - begun
    assert record == Compilation(
        blocks=LAYERS, graphs=2, calls=3 * CALLS, compiled_calls=3 * CALLS, seconds=record.seconds
    )


def test_a_last_batch_of_another_size_is_a_recompile_with_its_step_and_reason() -> None:
    record = watched(Model(), Loss(), [BATCH, BATCH, 3])
    first = record.recompiles[0]
    assert first.startswith("step 3: layers.0: 0/0: tensor 'x' size mismatch at index 0.")
    assert first.endswith("expected 8, actual 3")
    assert [text.split(": ")[:2] for text in record.recompiles] == [
        ["step 3", "layers.0"],
        ["step 3", LOSS],
    ]
    assert (record.graphs, record.breaks) == (4, ())
    # What was compiled again still ran compiled: a recompile is no fallback.
    assert record.eager == ()
    assert record.compiled_calls == record.calls == 3 * CALLS


def test_each_graph_break_is_recorded_with_its_reason() -> None:
    def broken(pred: torch.Tensor) -> torch.Tensor:
        pred = pred * 2
        torch._dynamo.graph_break()
        pred = pred + 1
        torch._dynamo.graph_break()
        return pred.sum()

    record = watched(Model(), Loss(broken), [BATCH] * 2)
    assert record.breaks == ("Call to `torch._dynamo.graph_break()`",) * 2
    assert record.graphs == 4


def test_breaks_of_before_the_watch_are_not_counted() -> None:
    def broken(pred: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return pred.sum()

    torch.compile(broken, backend="eager")(torch.ones(2))
    assert watched(Model(), Loss(), [BATCH]).breaks == ()


def test_graphs_of_before_the_watch_are_not_counted_and_their_calls_are() -> None:
    model, loss = Model(), Loss()
    loss.fn(model(torch.randn(BATCH, WIDTH)))
    record = watched(model, loss, [BATCH])
    assert (record.graphs, record.seconds) == (0, 0.0)
    assert record.compiled_calls == record.calls == CALLS


def test_a_stance_that_silently_runs_eager_is_seen_from_its_step_on() -> None:
    model, loss = Model(), Loss()
    watch = CompileWatch([model], loss)
    train(watch, model, loss, [BATCH] * 2)
    torch.compiler.set_stance("force_eager")
    train(watch, model, loss, [BATCH], first=3)
    record = watch.record()
    assert record.eager == tuple(
        f"step 3: {name}: 1 of 1 calls ran eagerly" for name in ("layers.0", "layers.1", LOSS)
    )
    assert (record.calls, record.compiled_calls) == (3 * CALLS, 2 * CALLS)
    # Nothing else tells.
    assert (record.recompiles, record.breaks, record.refused) == ((), (), ())


def test_a_function_that_dynamo_skips_is_seen_to_run_eagerly() -> None:
    def skipped(pred: torch.Tensor) -> torch.Tensor:
        return pred.square().sum()

    record = watched(Model(), Loss(torch._dynamo.decorators.skip(skipped)), [BATCH] * 2)
    assert record.eager == tuple(f"step {n}: loss: 1 of 1 calls ran eagerly" for n in (1, 2))
    assert record.compiled_calls == 2 * LAYERS


@torch._dynamo.config.patch(disable=True)
def test_compilation_that_is_turned_off_is_no_compiled_call() -> None:
    model, loss = Model(), Loss()
    for block in model.layers.values():
        # With one whole graph demanded, torch itself refuses to run what it did not compile.
        block.compile(backend="eager")
    record = watched(model, loss, [BATCH] * 2)
    assert (record.graphs, record.compiled_calls) == (0, 0)
    assert len(record.eager) == 2 * CALLS


@torch._dynamo.config.patch(recompile_limit=2)
def test_past_the_recompile_limit_each_call_is_seen_to_run_eagerly() -> None:
    model, loss = Model(), Loss()
    watch = CompileWatch([model], loss)
    x = torch.randn(BATCH, WIDTH)
    for step in range(1, 6):
        watch.begin(step)
        loss.fn(model(x), "abcde"[step - 1])
    record = watch.record()
    assert [text.split(": ")[:2] for text in record.recompiles] == [["step 2", LOSS]]
    assert len(record.refused) == 1
    assert record.refused[0].startswith("step 3: loss: Dynamo recompile limit exceeded (")
    assert record.eager == tuple(f"step {n}: loss: 1 of 1 calls ran eagerly" for n in (3, 4, 5))
    assert (record.calls, record.compiled_calls) == (5 * CALLS, 5 * CALLS - 3)


@torch._dynamo.config.patch(recompile_limit=2)
def test_a_call_of_which_only_the_first_part_has_compiled_code_ran_eagerly() -> None:
    def broken(pred: torch.Tensor, name: str) -> torch.Tensor:
        pred = pred * 2
        torch._dynamo.graph_break()
        return squares(pred, name)

    model, loss = Model(), Loss(broken)
    watch = CompileWatch([model], loss)
    for step, name in enumerate("abcde", 1):
        watch.begin(step)
        loss.fn(model(torch.randn(BATCH, WIDTH)), name)
    record = watch.record()
    # The part before the break knows nothing of the name: it has its code throughout.
    assert record.eager == tuple(f"step {n}: loss: 1 of 1 calls ran eagerly" for n in (3, 4, 5))
    assert len(record.refused) == 1


@torch._dynamo.config.patch(suppress_errors=True)
def test_a_backend_that_fails_and_is_excused_is_no_compiled_call() -> None:
    def refusing(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise NotImplementedError("this operation is not supported")

    record = watched(Model(), Loss(backend=refusing), [BATCH] * 2)
    assert record.compiled_calls == 2 * LAYERS
    assert record.eager == tuple(f"step {n}: loss: 1 of 1 calls ran eagerly" for n in (1, 2))
    assert len(record.refused) == 1
    assert "this operation is not supported" in record.refused[0]


@torch._dynamo.config.patch(suppress_errors=True)
def test_a_call_that_is_compiled_in_part_is_no_compiled_call() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def once(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        if len(graphs) > 1:
            raise NotImplementedError("one graph is enough")
        return graph.forward

    def broken(pred: torch.Tensor) -> torch.Tensor:
        pred = pred * 2
        torch._dynamo.graph_break()
        return pred.sum()

    record = watched(Model(), Loss(broken, backend=once), [BATCH])
    assert len(graphs) == 2
    assert record.eager == ("step 1: loss: 1 of 1 calls ran eagerly",)
    assert len(record.refused) == len(record.breaks) == 1


def test_a_block_that_a_step_leaves_out_is_named() -> None:
    model, loss = Model(), Loss()
    watch = CompileWatch([model], loss)
    train(watch, model, loss, [BATCH])
    del model.layers["1"]
    train(watch, model, loss, [BATCH], first=2)
    assert watch.record().eager == ("step 2: layers.1: was not called",)


def test_a_function_beside_the_components_is_watched_too() -> None:
    mask = torch.compile(lambda x: x + 1, backend="eager")
    model, loss = Model(), Loss()
    watch = CompileWatch([model], loss)
    for step, length in enumerate((8, 8, 6), 1):
        watch.begin(step)
        mask(torch.ones(length))
        loss.fn(model(torch.randn(BATCH, WIDTH)))
    record = watch.record()
    assert (record.graphs, record.calls) == (4, 3 * CALLS)
    assert len(record.recompiles) == 1
    assert record.recompiles[0].startswith("step 3: <lambda> (test_compiled.py:")


def test_what_is_compiled_first_after_the_first_step_is_named() -> None:
    late = torch.compile(lambda x: x + 1, backend="eager")
    model, loss = Model(), Loss()
    watch = CompileWatch([model], loss)
    train(watch, model, loss, [BATCH], first=7)
    watch.begin(8)
    late(torch.ones(2))
    loss.fn(model(torch.randn(BATCH, WIDTH)))
    record = watch.record()
    assert len(record.recompiles) == 1
    assert record.recompiles[0].startswith("step 8: <lambda>")
    assert record.recompiles[0].endswith("compiled for the first time")


def test_components_that_are_not_compiled_are_named_at_each_step() -> None:
    model, loss = Model(), Loss()
    for block in model.layers.values():
        block._compiled_call_impl = None
    loss.fn = squares
    record = watched(model, loss, [BATCH] * 2)
    assert record == Compilation(
        blocks=0,
        graphs=0,
        calls=0,
        compiled_calls=0,
        eager=tuple(
            f"step {step}: {component}: nothing of it is compiled"
            for step in (1, 2)
            for component in ("model", "loss")
        ),
        seconds=0.0,
    )


def test_a_model_compiled_without_its_loss_is_seen() -> None:
    loss = Loss()
    loss.fn = squares
    record = watched(Model(), loss, [BATCH])
    assert record.eager == ("step 1: loss: nothing of it is compiled",)
    assert (record.blocks, record.compiled_calls) == (LAYERS, LAYERS)


def test_results_and_gradients_are_those_without_the_watch() -> None:
    model, loss = Model("aot_eager"), Loss(backend="aot_eager")
    x = torch.randn(BATCH, WIDTH)
    expected = loss.fn(model(x))
    expected.backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    watch = CompileWatch([model], loss)
    watch.begin(1)
    found = loss.fn(model(x))
    found.backward()
    watch.record()
    assert torch.equal(found, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)


def test_after_the_record_all_is_as_before_and_nothing_is_counted() -> None:
    model, loss = Model(), Loss()
    before = [block._compiled_call_impl for block in model.layers.values()], loss.fn
    watch = CompileWatch([model], loss)
    train(watch, model, loss, [BATCH])
    record = watch.record()
    assert ([block._compiled_call_impl for block in model.layers.values()], loss.fn) == before
    loss.fn(model(torch.randn(3, WIDTH)))
    assert (watch._calls, watch._graphs) == (record.calls, record.graphs) == (CALLS, 2)


def test_a_hook_that_was_there_is_still_asked_and_comes_back() -> None:
    asked: list[bool] = []

    def earlier(hit: bool) -> bool:
        asked.append(hit)
        return hit

    set_guard_complete_hook(earlier)
    record = watched(Model(), Loss(), [BATCH] * 2)
    assert set_guard_complete_hook(None) is earlier
    # The first block of step 1 and the first loss had no guards yet.
    assert asked == [True] * (2 * CALLS - 2)
    assert record.compiled_calls == 2 * CALLS


@pytest.mark.parametrize(
    "name", ["get_compilation_metrics", "clear_compilation_metrics", "counters"]
)
def test_a_torch_without_a_name_is_refused_by_that_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._dynamo.utils, name)
    with pytest.raises(RuntimeError, match=f"this torch lacks torch._dynamo.utils.{name}:"):
        CompileWatch([Model()], Loss())


def test_a_torch_whose_rows_lack_a_field_is_refused_by_that_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = dataclasses.make_dataclass("Row", [n for n in compiled._ROW if n != "recompile_reason"])
    monkeypatch.setattr(torch._dynamo.utils, "CompilationMetrics", row)
    with pytest.raises(RuntimeError, match=r"lacks CompilationMetrics\.recompile_reason:"):
        CompileWatch([Model()], Loss())


@dataclasses.dataclass(kw_only=True)
class Config:
    """The fields of torchtitan 0.3.0."""

    enable: bool = False
    enable_async_tensor_parallel: bool = False
    components: list[str] = dataclasses.field(default_factory=list)
    backend: str = "none"


def test_a_choice_compiles_the_model_and_the_loss_with_its_backend() -> None:
    config = Config(**compile_fields(CompileChoice(backend="neuron"), Config))
    assert config == Config(enable=True, components=["model", "loss"], backend="neuron")


def test_without_a_choice_nothing_is_compiled() -> None:
    assert Config(**compile_fields(None, Config)).enable is False


def test_a_config_without_a_field_is_refused_by_name() -> None:
    older = dataclasses.make_dataclass("Older", ["enable", "backend"])
    with pytest.raises(RuntimeError, match="CompileConfig lacks components"):
        compile_fields(CompileChoice(backend="inductor"), older)
