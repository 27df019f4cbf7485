"""Defects of a rung whose gradient is wrong, and what has to stop each."""

from __future__ import annotations

from tests.defects.defect import GRADIENT, LOSS, NORM, REPLICAS, in_rung

GRADIENTS = (
    in_rung(
        "gradient scaled",
        "fsdp",
        "gradients:averaged_twice",
        "the gradient is too small by the data-parallel degree",
        GRADIENT,
        NORM,
        located="every parameter: a constant factor of 0.5",
    ),
    in_rung(
        "bf16 reduction",
        "fsdp",
        "gradients:reduced_in_bfloat16",
        "gradients are reduced in a shorter type than the plan's",
        GRADIENT,
        located="every parameter is off",
    ),
    in_rung(
        "parameter not reduced",
        "ddp",
        "gradients:not_reduced",
        "one parameter is not reduced across ranks",
        GRADIENT,
        REPLICAS,
        located=r"layers\.1\.ffn_norm\.weight",
    ),
    in_rung(
        "norm without tp",
        "tp",
        "gradients:norm_without_tp",
        "a norm weight lacks its reduction over tp",
        GRADIENT,
        located=r"layers\.0\.attention\.q_norm\.weight",
    ),
    in_rung(
        "parameter frozen",
        "fsdp",
        "gradients:frozen",
        "a parameter takes no gradient",
        "parameters compared",
        located=r"layers\.0\.attention\.q_norm\.weight has no gradient",
    ),
    in_rung(
        "gradient zero",
        "fsdp",
        "gradients:zeroed",
        "a parameter's gradient is all zero",
        GRADIENT,
        located=r"layers\.0\.attention\.q_norm\.weight; all zero",
    ),
    in_rung(
        "microbatch skipped",
        "pp",
        "gradients:microbatch_skipped",
        "a pp stage sends nothing back for one microbatch",
        GRADIENT,
        located=r"tok_embeddings\.weight",
    ),
    in_rung(
        "loss divided by cp",
        "cp",
        "gradients:loss_by_cp",
        "the loss is averaged over cp ranks that each hold a part of the sum",
        LOSS,
        GRADIENT,
        located="every parameter: a constant factor of 0.5",
    ),
    in_rung(
        "tokens of one rank",
        "fsdp",
        "gradients:tokens_of_one_rank",
        "the loss is divided by the tokens of each rank and then summed",
        LOSS,
        GRADIENT,
        located="every parameter: a constant factor of 2",
    ),
    in_rung(
        "cp positions",
        "cp",
        "gradients:positions_of_one_rank",
        "each cp rank counts its positions from zero",
        LOSS,
        GRADIENT,
        located="first over the limit at step 1",
    ),
    in_rung(
        "clipped on one rank",
        "ddp",
        "gradients:clipped_on_one_rank",
        "one rank clips and the other does not",
        REPLICAS,
        located=r"end of \S+: rank 1 and rank 0 differ",
    ),
)
"""In the order of what they spoil: the reduction, single weights, the loss, the clipping."""
