"""What each rank records while torchtitan's trainer runs.

The trainer and the metrics processor are subclasses that call their parents and look; they
change nothing. Every line is flushed and synced as it is written, and the closing line is
written before the process group is torn down, which is known to crash after correct work.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.trainer import Trainer

from trn_validate.records import Moment, Step
from trn_validate.spec import RunSpec, captures_folder, checkpoints_folder
from trn_validate.workload.capture import capture, perturb, stage_of
from trn_validate.workload.clock import START
from trn_validate.workload.comm import CommunicationCounter
from trn_validate.workload.compiled import CompileWatch
from trn_validate.workload.kernels import begin_counting, kernels_record
from trn_validate.workload.saved import saved
from trn_validate.workload.state import state_digests
from trn_validate.workload.writer import RankWriter

MODULUS = 2**128
"""Row digests are added modulo this, so that their order does not matter."""

_NON_FINITE = "Loss is not finite"
"""How torchtitan's own refusal begins (trainer.py, train_step)."""


def rows_digest(inputs: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor) -> int:
    """Sum modulo 2**128 of the digests of the rows of three (batch, length) int tensors."""
    columns = [t.detach().cpu().to(torch.int64).contiguous() for t in (inputs, labels, positions)]
    total = 0
    for row in range(columns[0].shape[0]):
        content = hashlib.sha256(b"".join(c[row].numpy().tobytes() for c in columns))
        total += int.from_bytes(content.digest()[:16], "big")
    return total % MODULUS


@dataclass
class _Watched:
    """What one optimizer step showed so far."""

    tokens: int = 0
    rows: int = 0
    row_count: int = 0
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    losses: list[torch.Tensor] = field(default_factory=list)
    forward_backward: float = 0.0
    probe: float = 0.0
    capture: float = 0.0


class ProbedMetrics(MetricsProcessor):
    """Keeps what the trainer logs, at full precision, and the peak memory before it is reset."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        """The parent's own fields."""

    last: tuple[float, float, float] | None = None
    """Loss, gradient norm and learning rate of the step that was logged last."""
    data_seconds: float = 0.0
    peak_bytes: int = 0

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """Keep the figures, then log as the parent does."""
        rates = [v for k, v in (extra_metrics or {}).items() if k.startswith("lr")]
        self.last = (float(global_avg_loss), float(grad_norm), float(rates[0] if rates else 0.0))
        self.data_seconds = sum(self.data_loading_times)
        stats = self.device_memory_monitor.get_peak_stats()
        self.peak_bytes = round(stats.max_reserved_gib * 2**30)
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)


class ProbedTrainer(Trainer):
    """torchtitan's trainer, watched."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """The run spec beside torchtitan's own fields."""

        spec: str = ""
        """The RunSpec, as JSON."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        START["built"] = time.monotonic()
        self.run_spec = RunSpec.model_validate_json(config.spec)
        self.writer = RankWriter(self.run_spec)
        self.writer.header(self)
        self.watched = _Watched()
        self.started = False
        self.trained = False
        compiled = self.run_spec.compiled is not None
        self.watch = CompileWatch(self.model_parts, self.loss_fn) if compiled else None

    def forward_backward_step(self, **arguments: Any) -> torch.Tensor:
        """Note what enters forward, before context parallelism splits it."""
        begun = time.perf_counter()
        inputs, labels = arguments["input_dict"], arguments["labels"]
        if isinstance(inputs, dict):
            inputs, labels = [inputs], [labels]
        for microbatch, targets in zip(inputs, labels, strict=True):
            self._note(microbatch, targets)
        noted = time.perf_counter()
        loss: torch.Tensor = super().forward_backward_step(**arguments)
        self.watched.losses.append(loss.detach())
        self.watched.forward_backward += time.perf_counter() - noted
        self.watched.probe += noted - begun
        # The last group's backward leaves the whole step's gradients, and clipping comes next.
        if self.step == 1 and len(self.watched.losses) == self.gradient_accumulation_steps:
            self.watched.capture = self._capture("gradient")
        return loss

    def _capture(self, moment: Moment) -> float:
        """Record the tensors of this moment where the spec asks for it; the seconds it took."""
        spec = self.run_spec
        if spec.capture == "none":
            return 0.0
        stage, first = stage_of(self)
        writes = first and (moment != "start" or spec.keep_start)
        captured = capture(
            moment,
            self.model_parts,
            mode=spec.capture,
            stage=stage,
            folder=captures_folder(spec) if writes else None,
        )
        self.writer.write(captured)
        return captured.seconds

    def _note(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> None:
        length = self.run_spec.seq_len
        tokens = inputs["input"]
        rows = [t.reshape(-1, length) for t in (tokens, labels, inputs["positions"])]
        self.watched.tokens += labels.numel()
        self.watched.rows += rows_digest(*rows)
        self.watched.row_count += rows[0].shape[0]
        self.watched.shapes.add(tuple(tokens.shape))

    def train_step(self, data_iterator: Any) -> None:
        """Run the parent's step and write its record, also if it refuses its own loss."""
        if not self.started:
            self.started = True
            self._begin()
        self.watched = _Watched()
        if self.watch is not None:
            self.watch.begin(self.step)
        begun = time.perf_counter()
        try:
            super().train_step(data_iterator)
        except RuntimeError as error:
            if str(error).startswith(_NON_FINITE):
                self._write(self._local_loss(), math.nan, 0.0, time.perf_counter() - begun)
            raise
        metrics: ProbedMetrics = self.metrics_processor
        assert metrics.last is not None, "log_freq is 1, so every step is logged"
        self._write(*metrics.last, time.perf_counter() - begun)
        if self.step in self.run_spec.digest_steps:
            self.writer.state(self.step, "end", state_digests(self))
        if self.step == self.run_spec.steps:
            self._capture("end")

    def _begin(self) -> None:
        """Before the first step taken: the weights are those that were loaded."""
        if self.run_spec.perturb:
            dtype = getattr(torch, self.run_spec.compute_dtype)
            perturb(self.model_parts, dtype, self.run_spec.perturb)
        if 0 in self.run_spec.digest_steps:
            self.writer.state(self.step - 1, "start", state_digests(self))
        self._capture("start")
        if self.run_spec.kernels:
            begin_counting()

    def _local_loss(self) -> float:
        """This rank's loss if it is the one that is not finite, else NaN: the sum was refused."""
        local = float(sum(float(loss.sum()) for loss in self.watched.losses))
        return math.nan if math.isfinite(local) else local

    def _write(self, loss: float, grad_norm: float, rate: float, total: float) -> None:
        watched, metrics = self.watched, self.metrics_processor
        data = metrics.data_seconds
        spent = data + watched.forward_backward + watched.probe + watched.capture
        self.writer.write(
            Step(
                step=self.step,
                loss=loss,
                loss_here=not self.parallel_dims.pp_enabled or self.pp_has_last_stage,
                grad_norm=grad_norm,
                learning_rate=rate,
                tokens=watched.tokens,
                rows=f"{watched.rows % MODULUS:032x}",
                row_count=watched.row_count,
                shapes=tuple(sorted(watched.shapes)),
                seconds={
                    "data": data,
                    "forward_backward": watched.forward_backward,
                    # Clipping and the reduction of the metrics are part of it.
                    "optimizer": max(0.0, total - spent),
                    "probe": watched.probe,
                    "capture": watched.capture,
                    "total": total,
                },
                peak_memory_bytes=metrics.peak_bytes,
            )
        )

    def train(self) -> None:
        """Train, and note that it came to its end."""
        super().train()
        if self.watch is not None:
            self.writer.write(self.watch.record())
        if self.run_spec.checkpoint.save_interval is not None and self.writer.rank == 0:
            for line in saved(checkpoints_folder(self.run_spec)):
                self.writer.write(line)
        if self.run_spec.kernels:
            self.writer.write(kernels_record(self.run_spec.kernels, self.model_parts))
        if self.run_spec.count_communication:
            self._count_communication()
        self.trained = True

    def _count_communication(self) -> None:
        """One more step, which no check judges: counting slows it down."""
        self.step += 1
        counter = CommunicationCounter()
        with counter:
            super().train_step(self.batch_generator(self.dataloader))
        self.writer.write(counter.record(self.step))

    def close(self) -> None:
        """Write the closing line before anything is torn down, if all the work was done."""
        seeded = self.run_spec.checkpoint.create_seed and sys.exc_info()[0] is None
        if hasattr(self, "writer") and (self.trained or seeded):
            self.writer.closing()
        super().close()
