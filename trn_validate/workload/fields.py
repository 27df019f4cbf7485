"""Which of torchtitan's fields hold the batch: told by their names, not by a version.

0.3.0 counts samples (local_batch_size, global_batch_size, seq_len); the generation after
it counts tokens (num_tokens_per_microbatch_per_dp_rank, num_tokens_per_train_step,
max_context_length and num_pp_microbatches). 0.2.2 has TOML and no such dataclass at all.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from trn_validate.spec import RunSpec

_SAMPLES = {"local_batch_size", "global_batch_size", "seq_len"}
_TOKENS = {
    "num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_train_step",
    "max_context_length",
}


def generation(config_module: Any) -> str:
    """What ``torchtitan.config`` is configured by: samples, tokens, TOML, or other."""
    if hasattr(config_module, "JobConfig"):
        return "TOML"
    training = getattr(config_module, "TrainingConfig", None)
    if not dataclasses.is_dataclass(training):
        return "other"
    names = {field.name for field in dataclasses.fields(training)}
    if names >= _SAMPLES:
        return "samples"
    return "tokens" if names >= _TOKENS else "other"


def batch_fields(
    spec: RunSpec, training: type, parallelism: type
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values for the two config classes that keep ``spec``'s tokens per step.

    Raises:
        RuntimeError: neither generation's fields are there; names those that are missing.
    """
    names = {field.name for field in dataclasses.fields(training)}
    if names >= _SAMPLES:
        return {
            "local_batch_size": spec.local_batch_size,
            "global_batch_size": spec.global_batch_size,
            "seq_len": spec.seq_len,
        }, {}
    if names >= _TOKENS:
        return _token_fields(spec, parallelism)
    raise RuntimeError(
        "this torchtitan's TrainingConfig is of no known generation: it lacks "
        f"{', '.join(sorted(_SAMPLES - names))} (0.3.0) and "
        f"{', '.join(sorted(_TOKENS - names))} (the one after)"
    )


def _token_fields(spec: RunSpec, parallelism: type) -> tuple[dict[str, Any], dict[str, Any]]:
    pipelined = spec.degrees.pp > 1
    rows = 1 if pipelined else spec.local_batch_size
    training = {
        "num_tokens_per_microbatch_per_dp_rank": rows * spec.seq_len,
        "num_tokens_per_train_step": spec.tokens_per_step,
        "max_context_length": spec.seq_len,
    }
    if not pipelined:
        return training, {}
    if "num_pp_microbatches" not in {field.name for field in dataclasses.fields(parallelism)}:
        raise RuntimeError("this torchtitan's ParallelismConfig lacks num_pp_microbatches")
    return training, {"num_pp_microbatches": spec.local_batch_size}


def refuse_toml(config_module: Any) -> None:
    """Refuse the generation that is configured by TOML.

    Raises:
        RuntimeError: ``torchtitan.config`` has the JobConfig of 0.2.2.
    """
    if generation(config_module) == "TOML":
        raise RuntimeError(
            "this torchtitan is configured by TOML (torchtitan.config.JobConfig, as 0.2.2 was); "
            "trn-validate drives the generations that are configured in Python, from 0.3.0"
        )
