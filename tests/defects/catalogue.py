"""The seeded defects: what each stands for, where it goes in, and what has to stop it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One defect of a launch, or of several launches of a stage."""

    name: str
    stands_for: str
    """The class of bug, in a sentence."""
    hook: str
    """``module:function`` below tests.defects."""
    stage: str
    """The stage that has to fail."""
    launches: tuple[str, ...]
    """Launches of the stage that have the defect."""
    follow: tuple[str, ...] = ()
    """Launches that read what those wrote, so that they are repeated too."""
    caught_by: tuple[str, ...]
    """Checks of which each has to say no."""
    located: str
    """Pattern that the text of one of these has to hold: the rank, step, part or parameter."""

    @property
    def import_path(self) -> str:
        """The hook as a run spec takes it."""
        return f"tests.defects.{self.hook}"


def _rung(name: str, rung: str, hook: str, stands_for: str, *caught: str, located: str) -> Defect:
    return Defect(
        name=name,
        stands_for=stands_for,
        hook=hook,
        stage=f"parallelism.{rung}",
        launches=(rung,),
        caught_by=tuple(f"{rung}: {what}" for what in caught),
        located=located,
    )


LOSS, NORM, ROWS = (
    "loss against the reference",
    "grad norm against the reference",
    "steps with other rows",
)
GRADIENT, PARAMETERS = "gradient of step 1", "parameters after the last step"
REPLICAS = "replicas agree"

LADDER = (
    _rung(
        "gradient scaled",
        "fsdp",
        "gradients:averaged_twice",
        "the gradient is too small by the data-parallel degree",
        GRADIENT,
        NORM,
        located="every parameter: a constant factor of 0.5",
    ),
    _rung(
        "bf16 reduction",
        "fsdp",
        "gradients:reduced_in_bfloat16",
        "gradients are reduced in a shorter type than the plan's",
        GRADIENT,
        located="every parameter is off",
    ),
    _rung(
        "parameter not reduced",
        "ddp",
        "gradients:not_reduced",
        "one parameter is not reduced across ranks",
        GRADIENT,
        REPLICAS,
        located=r"layers\.1\.ffn_norm\.weight",
    ),
    _rung(
        "norm without tp",
        "tp",
        "gradients:norm_without_tp",
        "a norm weight lacks its reduction over tp",
        GRADIENT,
        located=r"layers\.0\.attention\.q_norm\.weight",
    ),
    _rung(
        "parameter frozen",
        "fsdp",
        "gradients:frozen",
        "a parameter takes no gradient",
        "parameters compared",
        located=r"layers\.0\.attention\.q_norm\.weight has no gradient",
    ),
    _rung(
        "gradient zero",
        "fsdp",
        "gradients:zeroed",
        "a parameter's gradient is all zero",
        GRADIENT,
        located=r"layers\.0\.attention\.q_norm\.weight; all zero",
    ),
    _rung(
        "microbatch skipped",
        "pp",
        "gradients:microbatch_skipped",
        "a pp stage sends nothing back for one microbatch",
        GRADIENT,
        located=r"tok_embeddings\.weight",
    ),
    _rung(
        "loss divided by cp",
        "cp",
        "gradients:loss_by_cp",
        "the loss is averaged over cp ranks that each hold a part of the sum",
        LOSS,
        GRADIENT,
        located="every parameter: a constant factor of 0.5",
    ),
    _rung(
        "tokens of one rank",
        "fsdp",
        "gradients:tokens_of_one_rank",
        "the loss is divided by the tokens of each rank and then summed",
        LOSS,
        GRADIENT,
        located="every parameter: a constant factor of 2",
    ),
    _rung(
        "cp positions",
        "cp",
        "gradients:positions_of_one_rank",
        "each cp rank counts its positions from zero",
        LOSS,
        GRADIENT,
        located="first over the limit at step 1",
    ),
    _rung(
        "clipped on one rank",
        "ddp",
        "gradients:clipped_on_one_rank",
        "one rank clips and the other does not",
        REPLICAS,
        located=r"end of \S+: rank 1 and rank 0 differ",
    ),
    _rung(
        "left out of the optimizer",
        "fsdp",
        "updates:left_out",
        "the optimizer does not have a parameter",
        PARAMETERS,
        located=r"layers\.0\.attention\.q_norm\.weight",
    ),
    _rung(
        "no weight decay",
        "fsdp",
        "updates:no_weight_decay",
        "weights decay in one layout only",
        PARAMETERS,
        located=r"over the limit: \S+\.weight",
    ),
    _rung(
        "other learning rate",
        "fsdp",
        "updates:other_learning_rate",
        "the learning rate differs by layout",
        PARAMETERS,
        located=r"over the limit: \S+\.weight",
    ),
    _rung(
        "other second moments",
        "fsdp",
        "updates:other_momentum",
        "a constant of the optimizer differs by layout",
        PARAMETERS,
        located=r"over the limit: \S+\.weight",
    ),
    _rung(
        "rank with another seed",
        "ddp",
        "updates:other_seed",
        "one rank starts from other weights",
        REPLICAS,
        located=r"start of tok_embeddings\.weight: rank 1 and rank 0 differ",
    ),
    _rung(
        "seed ignored",
        "fsdp",
        "updates:seed_ignored",
        "a layout starts from weights of its own",
        "weights at the start",
        located=r"tok_embeddings\.weight",
    ),
    _rung(
        "same sample twice",
        "fsdp",
        "samples:same_on_two_ranks",
        "two data-parallel ranks train on the same sample",
        ROWS,
        located="first at step 1",
    ),
    _rung(
        "samples swapped",
        "fsdp",
        "samples:swapped_between_steps",
        "a sample of one step is used at the next, and the other way round",
        ROWS,
        located="first at step 1",
    ),
    _rung(
        "loader stuck",
        "fsdp",
        "samples:stuck",
        "the loader gives the first batch for ever in one layout",
        ROWS,
        located="first at step 2",
    ),
    _rung(
        "split inside tp",
        "tp",
        "samples:split_inside_tp",
        "ranks that share samples see other ones",
        "ranks agree",
        located="ranks 0 and 1",
    ),
    _rung(
        "batch follows dp",
        "fsdp",
        "training:larger_batch",
        "the global batch grows with the data-parallel degree",
        "tokens per step",
        "steps with other tokens",
        located="step 1",
    ),
    _rung(
        "tp ignored",
        "tp",
        "layouts:tp_ignored",
        "the layout that was asked for was not built",
        "degrees",
        located="rank 0",
    ),
    _rung(
        "one step short",
        "fsdp",
        "layouts:one_step_short",
        "the run ends early and says nothing",
        "steps",
        "steps compared",
        located="3 == 4",
    ),
    _rung(
        "layer missing",
        "fsdp",
        "layouts:layer_missing",
        "the model has a layer less",
        "parameters",
        "parameters compared",
        located=r"layers\.1\.\S+ has no gradient",
    ),
    _rung(
        "loss is not a number",
        "fsdp",
        "training:not_finite",
        "a loss that is not a number",
        "numbers that are not finite",
        located="rank 0 at step 3",
    ),
)
"""Of a rung: each is held against the ladder's reference."""

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
        located="3 == 0",
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


def _state(name: str, hook: str, stands_for: str, part: str) -> Defect:
    return Defect(
        name=name,
        stands_for=stands_for,
        hook=hook,
        stage="baseline.checkpoint",
        launches=("resume",),
        caught_by=("resume: state at the start",),
        located=rf"\({part} of rank 0\)$",
    )


def _saved(name: str, hook: str, stands_for: str, part: str) -> Defect:
    return Defect(
        name=name,
        stands_for=stands_for,
        hook=hook,
        stage="baseline.checkpoint",
        launches=("save",),
        follow=("resume",),
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
    _saved(
        "stale shard",
        "checkpoints:stale_shard",
        "a checkpoint with one tensor of an earlier step",
        "model",
    ),
    _saved(
        "bf16 checkpoint",
        "checkpoints:saved_in_bfloat16",
        "weights that were rounded to bf16 on their way to the disk",
        "model",
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


def _compiled(name: str, hook: str, stands_for: str, *caught: str, located: str) -> Defect:
    return Defect(
        name=name,
        stands_for=stands_for,
        hook=f"compilation:{hook}",
        stage="kernels.compile",
        launches=("compiled-baseline",),
        caught_by=tuple(f"compiled-baseline: {what}" for what in caught),
        located=located,
    )


COMPILED = (
    _compiled(
        "compiled again",
        "compiled_again",
        "a recompile at step 4",
        "compilations after step 1",
        located=r"step 4: layers\.0",
    ),
    _compiled(
        "eager fallback",
        "eager_from_step_3",
        "what was compiled runs eagerly, silently",
        "regions that ran eagerly",
        located=r"step 3: layers\.0",
    ),
    _compiled(
        "block left out",
        "block_left_out",
        "a block that is never compiled",
        "compiled blocks",
        located="each of 1 ranks",
    ),
)
"""Of a compiled run."""

DEFECTS = (*BASELINE, *CHECKPOINT, *LADDER, *COMPILED)
