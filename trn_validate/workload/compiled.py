"""What torch.compile did on this rank, watched from outside.

Nothing is put in the way: no backend is wrapped, no stance is set and nothing raises. torchtitan
refuses a backend of another name beside FlexAttention, and Dynamo treats one that is not
registered differently. Instead Dynamo says before each frame whether it has compiled code for
it (the hook that ``torch.compiler.set_enable_guard_collectives`` uses), and it leaves a row for
each compilation. From these two each call of what torchtitan compiled is judged: it ran compiled
code, or it fell back to eager, which Dynamo itself mentions in a log at most.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from trn_validate.records import Compilation
from trn_validate.spec import CompileChoice

MODEL, LOSS = "model", "loss"
"""The components that torchtitan compiles, by its own names."""

_SLOT = "_compiled_call_impl"
"""Where ``torch.nn.Module.compile`` keeps the compiled call."""

_COMPILED = "_torchdynamo_orig_callable"
"""What Dynamo leaves on every function that it wraps."""

_APIS = (
    ("torch._C._dynamo.eval_frame", "set_guard_complete_hook"),
    ("torch._dynamo.utils", "get_compilation_metrics"),
    ("torch._dynamo.utils", "clear_compilation_metrics"),
    ("torch._dynamo.utils", "CompilationMetrics"),
    ("torch._dynamo.utils", "counters"),
)
_ROW = (
    *("co_name", "co_filename", "co_firstlineno", "is_forward", "duration_us"),
    *("has_guarded_code", "graph_op_count", "fail_type", "fail_reason", "recompile_reason"),
)

_LONGEST = 240
"""Characters of a reason that are kept: its first line says it, what follows is a stack."""


def compile_fields(choice: CompileChoice | None, config: type) -> dict[str, Any]:
    """Values for torchtitan's ``CompileConfig``; without a choice nothing is compiled.

    Raises:
        RuntimeError: the config class lacks a field; names those that are missing.
    """
    needed = {"enable", "components", "backend"}
    missing = needed - {field.name for field in dataclasses.fields(config)}
    if missing:
        raise RuntimeError(f"this torchtitan's CompileConfig lacks {', '.join(sorted(missing))}")
    if choice is None:
        return {"enable": False}
    return {"enable": True, "components": [MODEL, LOSS], "backend": choice.backend}


@dataclass
class _Region:
    """One compiled callable, where it hangs, and its calls in the present step."""

    component: str
    name: str
    owner: object
    slot: str
    original: Callable[..., Any]
    calls: int = 0
    eager: int = 0


class _Dynamo:
    """The names of torch that the watch needs, all found before anything runs."""

    def __init__(self) -> None:
        found, missing = {}, []
        for module, name in _APIS:
            try:
                found[name] = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                missing.append(f"{module}.{name}")
        if (row := found.get("CompilationMetrics")) is not None:
            names = {field.name for field in dataclasses.fields(row)}
            missing.extend(f"CompilationMetrics.{name}" for name in _ROW if name not in names)
        if missing:
            raise RuntimeError(
                f"this torch lacks {', '.join(missing)}: what it compiles cannot be watched"
            )
        self.set_hook: Callable[[Any], Any] = found["set_guard_complete_hook"]
        self._metrics: Callable[[], list[Any]] = found["get_compilation_metrics"]
        self._clear: Callable[[], None] = found["clear_compilation_metrics"]
        self._counters = found["counters"]

    def rows(self) -> list[Any]:
        """Compilations since this was last asked."""
        rows = self._metrics()
        # Dynamo keeps only the last 64, so a row is taken away once it is read.
        self._clear()
        return rows

    def breaks(self) -> dict[str, int]:
        """Graph breaks of this process so far, by reason."""
        return dict(self._counters["graph_break"])


class CompileWatch:
    """Watches what torchtitan compiled, from its construction until :meth:`record`.

    Made once the trainer is built and before anything ran. :meth:`begin` names each step.

    Raises:
        RuntimeError: this torch lacks a name that the watch needs; names it.
    """

    def __init__(self, model_parts: Iterable[nn.Module], loss: object) -> None:
        self._dynamo = _Dynamo()
        self._eager: list[str] = []
        self._refused: list[str] = []
        self._recompiles: list[str] = []
        self._graphs = self._calls = self._compiled_calls = 0
        self._seconds = 0.0
        self._step = self._first = 0
        self._hits = self._misses = 0
        self._regions = [*_of_model(model_parts), *_of_loss(loss)]
        for region in self._regions:
            setattr(region.owner, region.slot, self._watched(region))
        self._dynamo.rows()
        self._breaks = self._dynamo.breaks()
        self._previous = self._dynamo.set_hook(self._checked)

    def _checked(self, hit: bool) -> bool:
        """Dynamo has checked the guards of a frame; its own answer is given back."""
        self._hits += hit
        self._misses += not hit
        return hit if self._previous is None else bool(self._previous(hit))

    def _watched(self, region: _Region) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._take()
            hits, misses = self._hits, self._misses
            result = region.original(*arguments, **keywords)
            compiled, failed = self._take(region)
            hits, misses = self._hits - hits, self._misses - misses
            # A frame without compiled code must have got some, and none may be given up.
            ran = hits + compiled > 0 and misses <= compiled and not failed
            region.calls += 1
            region.eager += not ran
            self._calls += 1
            self._compiled_calls += ran
            return result

        return call

    def _take(self, region: _Region | None = None) -> tuple[int, int]:
        """Note the compilations since the last time: how many succeeded and how many failed."""
        compiled = failed = 0
        for row in self._dynamo.rows():
            self._seconds += (row.duration_us or 0) / 1e6
            # A backward belongs to a forward that has a row of its own. A frame that was refused
            # before it was traced says neither.
            if row.is_forward is not False:
                self._note(row, region)
                failed += row.fail_type is not None
                compiled += row.fail_type is None and bool(row.has_guarded_code)
        return compiled, failed

    def _note(self, row: Any, region: _Region | None) -> None:
        place = f"{row.co_name} ({Path(row.co_filename or '').name}:{row.co_firstlineno})"
        place = region.name if region else place if row.co_name else "a frame"
        where, reason = f"step {self._step}: {place}", _line(row.recompile_reason or "")
        if row.fail_type is not None:
            told = _line(row.fail_reason or row.fail_type)
            self._refused.append(f"{where}: {told}" + (f" ({reason})" if reason else ""))
            return
        if row.has_guarded_code and row.graph_op_count:
            self._graphs += 1
        if reason:
            self._recompiles.append(f"{where}: {reason}")
        elif self._step != self._first:
            self._recompiles.append(f"{where}: compiled for the first time")

    def begin(self, step: int) -> None:
        """From here on it is ``step``, counted from 1; the first one named may compile."""
        self._end_step()
        self._step, self._first = step, self._first or step

    def _end_step(self) -> None:
        self._take()
        if not self._step:
            return
        for component in (MODEL, LOSS):
            if all(region.component != component for region in self._regions):
                self._eager.append(f"step {self._step}: {component}: nothing of it is compiled")
        for region in self._regions:
            if region.eager or not region.calls:
                ran = f"{region.eager} of {region.calls} calls ran eagerly"
                how = ran if region.calls else "was not called"
                self._eager.append(f"step {self._step}: {region.name}: {how}")
            region.calls = region.eager = 0

    def record(self) -> Compilation:
        """Stop watching and say what was seen; what is called later is not counted."""
        self._end_step()
        self._dynamo.set_hook(self._previous)
        for region in self._regions:
            setattr(region.owner, region.slot, region.original)
        counts = {r: n - self._breaks.get(r, 0) for r, n in self._dynamo.breaks().items()}
        return Compilation(
            blocks=sum(region.component == MODEL for region in self._regions),
            graphs=self._graphs,
            calls=self._calls,
            compiled_calls=self._compiled_calls,
            eager=tuple(self._eager),
            refused=tuple(self._refused),
            breaks=tuple(_line(reason) for reason, n in counts.items() for _ in range(n)),
            recompiles=tuple(self._recompiles),
            seconds=self._seconds,
        )


def _of_model(model_parts: Iterable[nn.Module]) -> Iterable[_Region]:
    for part in model_parts:
        for name, module in part.named_modules():
            if (call := getattr(module, _SLOT, None)) is not None:
                yield _Region(MODEL, name, module, _SLOT, call)


def _of_loss(loss: object) -> Iterable[_Region]:
    # The chunked loss holds the one whose function is compiled.
    while loss is not None:
        function = getattr(loss, "fn", None)
        if function is not None and hasattr(function, _COMPILED):
            yield _Region(LOSS, LOSS, loss, "fn", function)
        loss = getattr(loss, "loss_fn", None)


def _line(text: str) -> str:
    """What a reason says first, on one line; a line that ends in a colon names what follows it."""
    lines = text.strip().splitlines()
    first = lines[: 2 if lines and lines[0].endswith(":") else 1]
    return " ".join(" ".join(first).split())[:_LONGEST]
