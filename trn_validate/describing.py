"""What ran, how fast, and what it communicated: for the verdict, and judged by nothing."""

from __future__ import annotations

from trn_validate.base import median
from trn_validate.folded import Records
from trn_validate.judging import arrangement
from trn_validate.launching import Trial
from trn_validate.stage import Findings
from trn_validate.verdict import Layout, Seat, Thing


def layout(trial: Trial, model: str) -> Layout:
    """What ran, for the verdict."""
    spec = trial.spec
    return Layout(
        model=model,
        processes=spec.degrees.world_size,
        degrees=spec.degrees,
        global_batch_size=spec.global_batch_size,
        seq_len=spec.seq_len,
        tokens_per_step=spec.tokens_per_step,
        local_batch_size=spec.local_batch_size,
        accumulation=spec.accumulation,
        compute_dtype=spec.compute_dtype,
        attention=spec.attention,
        spmd_backend=spec.spmd_backend,
        sequence_parallel=spec.sequence_parallel,
        seats=seats(trial),
    )


def seats(trial: Trial) -> tuple[Seat, ...]:
    """Node and core of each rank, for a launch over several nodes."""
    if trial.spec.nodes == 1:
        return ()
    return tuple(
        Seat(
            rank=number,
            node=rank.header.node,
            core=rank.header.core,
            peak_memory_bytes=rank.peak_memory_bytes,
            step_seconds=rank.step_seconds,
        )
        for number, rank in trial.records.ranks.items()
    )


def slowest(trial: Trial) -> dict[str, str]:
    """Which rank takes longest, by how much, and where; a fact, since it names a node."""
    every = seats(trial)
    if not every:
        return {}
    usual = median([seat.step_seconds for seat in every])
    worst = max(every, key=lambda seat: seat.step_seconds)
    factor = worst.step_seconds / usual if usual else 1.0
    return {"slowest rank": f"{worst.rank} on {worst.node}, {factor:.2f} x the median step"}


def thing(trial: Trial, attempt: str, implementation: str = "") -> Thing:
    """One side of a comparison; ``implementation`` is what it is besides its layout."""
    layout = arrangement(trial.spec)
    return thing_of(
        trial.spec.name,
        attempt,
        trial.records,
        f"{layout}, {implementation}" if implementation else layout,
    )


def thing_of(name: str, attempt: str, records: Records, layout: str) -> Thing:
    """One side of a comparison, whose ranks left these records."""
    processes = tuple(header.process for header in records.headers)
    return Thing(name=name, attempt=attempt, processes=processes, layout=layout)


def series(trial: Trial) -> dict[str, tuple[float, ...]]:
    """Loss and gradient norm of every step, and its seconds on the slowest rank."""
    steps = trial.records.steps
    return {
        "loss": tuple(s.loss for s in steps),
        "grad_norm": tuple(s.grad_norm for s in steps),
        "step_seconds": tuple(s.seconds for s in steps),
    }


def speed(trial: Trial) -> dict[str, float]:
    """Tokens per second, step seconds and peak memory; the first step is left out of the time."""
    seconds = series(trial)["step_seconds"][1:]
    peaks = [s.peak_memory_bytes for s in trial.records.steps]
    found: dict[str, float] = {"peak_memory_bytes": float(max(peaks, default=0))}
    if seconds:
        found["step_seconds"] = median(seconds)
        found["tokens_per_second"] = trial.spec.tokens_per_step / median(seconds)
    return found


def communication(trial: Trial) -> dict[str, float]:
    """Calls and bytes of one step by kind, each of the rank that has most of it.

    Of a step after those that are judged, since counting takes time.
    """
    found: dict[str, float] = {}
    for rank in trial.records.ranks.values():
        line = rank.communication
        for what, amounts in (("calls", line.calls), ("bytes", line.bytes)) if line else ():
            for kind, amount in amounts.items():
                name = f"communication_{what}.{kind}"
                found[name] = max(found.get(name, 0.0), float(amount))
    return found


def describe(findings: Findings, trial: Trial, model: str) -> None:
    """Put what ran, where, how fast and with which versions into the findings of a stage."""
    header = trial.records.headers[0]
    findings.layout = layout(trial, model)
    findings.device = header.parameter_device
    findings.versions = header.versions
    findings.facts = {
        **findings.facts,
        "replaced": ", ".join(header.replaced),
        **slowest(trial),
    }
    findings.series = series(trial)
    findings.measures = {**findings.measures, **speed(trial), **communication(trial)}
