"""Defects of the baseline and of checkpoints, and what has to stop each."""

from __future__ import annotations

from tests.defects.defect import Defect

BASELINE = (
    Defect(
        name="learning rate zero",
        stands_for="the optimizer changes nothing",
        hook="training:learning_rate_zero",
        stage="baseline.eager",
        launches=("reference",),
        caught_by=("reference: fall of the loss",),
        located="over 4 steps",
    ),
    Defect(
        name="head too large",
        stands_for="random weights of the wrong size",
        hook="updates:head_too_large",
        stage="baseline.eager",
        launches=("reference",),
        caught_by=("reference: first loss from ln(vocabulary)",),
        located="first loss",
    ),
    Defect(
        name="not deterministic",
        stands_for="an operation gives another last digit each time",
        hook="updates:not_deterministic",
        stage="baseline.eager",
        launches=("rerun",),
        caught_by=("rerun: state after the last step",),
        located="model of rank 0",
    ),
    Defect(
        name="gradients cleared",
        stands_for="gradients are cleared between the micro-batches of a step",
        hook="gradients:only_the_last_microbatch",
        stage="baseline.eager",
        launches=("accumulation",),
        caught_by=(
            "accumulation: grad norm against the reference",
            "accumulation: gradient of step 1",
        ),
        located="every parameter is off",
    ),
    Defect(
        name="loader stuck everywhere",
        stands_for="the loader gives the first batch for ever, in every run",
        hook="samples:stuck",
        stage="baseline.eager",
        launches=("reference",),
        caught_by=("reference: steps with rows of an earlier step",),
        located="first at step 2",
    ),
    Defect(
        name="control too noisy",
        stands_for="a control that would allow anything",
        hook="updates:control_too_noisy",
        stage="baseline.eager",
        launches=("control",),
        caught_by=(
            "control: noise of the loss",
            "control: noise of the grad norm",
            "control: noise of the gradient of step 1",
            "control: noise of the parameters after the last step",
        ),
        located="too noisy",
    ),
    Defect(
        name="control not moved",
        stands_for="a control that is the reference again",
        hook="updates:control_not_moved",
        stage="baseline.eager",
        launches=("control",),
        caught_by=("control: weights that were not moved", "control: effect on the gradient"),
        located=r"first tok_embeddings\.weight",
    ),
)
"""Of the first ladder's reference and its repetitions."""


def _state(name: str, hook: str, stands_for: str, part: str, *, saved: bool = False) -> Defect:
    """A part of the state that is lost on resume, or was wrong in what was saved."""
    return Defect(
        name=name,
        stands_for=stands_for,
        hook=hook,
        stage="baseline.checkpoint",
        launches=("save",) if saved else ("resume",),
        follow=("resume",) if saved else (),
        caught_by=("resume: state at the start",),
        located=rf"\({part} of rank 0\)$",
    )


CHECKPOINT = (
    _state(
        "data position lost",
        "checkpoints:data_position_lost",
        "a resume that starts the data afresh",
        "data",
    ),
    _state(
        "scheduler lost",
        "checkpoints:scheduler_lost",
        "a resume that starts the schedule afresh",
        "scheduler",
    ),
    _state(
        "second moments lost",
        "checkpoints:second_moments_lost",
        "a resume without the second moments",
        "optimizer",
    ),
    _state(
        "optimizer lost",
        "training:optimizer_lost",
        "a resume with the weights alone",
        "optimizer",
    ),
    _state(
        "rng lost",
        "checkpoints:rng_lost",
        "a resume whose random numbers begin elsewhere",
        "rng",
    ),
    _state(
        "stale shard",
        "checkpoints:stale_shard",
        "a checkpoint with one tensor of an earlier step",
        "model",
        saved=True,
    ),
    _state(
        "bf16 checkpoint",
        "checkpoints:saved_in_bfloat16",
        "weights that were rounded to bf16 on their way to the disk",
        "model",
        saved=True,
    ),
    Defect(
        name="nothing saved",
        stands_for="the interval is never reached, and nobody notices",
        hook="checkpoints:nothing_saved",
        stage="baseline.checkpoint",
        launches=("save",),
        caught_by=("save: checkpoint files",),
        located="step-2",
    ),
    Defect(
        name="part not saved",
        stands_for="a checkpoint that lacks a part of the state from the beginning",
        hook="checkpoints:schedule_left_out",
        stage="baseline.checkpoint",
        launches=("save",),
        caught_by=("save: entries of the checkpoint",),
        located="lr_scheduler",
    ),
    Defect(
        name="bf16 export",
        stands_for="an export in a shorter type than the weights have",
        hook="checkpoints:exported_in_bfloat16",
        stage="baseline.checkpoint",
        launches=("resume",),
        follow=("reload",),
        caught_by=("reload: model at the start",),
        located="model of rank 0",
    ),
    Defect(
        name="key missing",
        stands_for="an export without one weight",
        hook="checkpoints:key_missing",
        stage="baseline.checkpoint",
        launches=("resume",),
        follow=("reload",),
        caught_by=("export: elements in the safetensors",),
        located="tensors",
    ),
    Defect(
        name="damage accepted",
        stands_for="a checkpoint that cannot be read is taken for none",
        hook="checkpoints:damage_accepted",
        stage="baseline.checkpoint",
        launches=("truncated", "missing"),
        caught_by=(
            "truncated shard: steps trained on it",
            "missing shard: steps trained on it",
        ),
        located="distcp",
    ),
)
"""Of saving, resuming and exporting."""
