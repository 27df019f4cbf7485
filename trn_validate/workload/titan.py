"""The one place that sets torchtitan's fields.

Builds a trainer's config from a run spec. What it takes from the model's registry is the
ModelSpec; data, tokenizer, metrics, checkpoint and trainer are the workload's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torchtitan.config as titan_config
from torch import nn
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config.configs import (
    CommConfig,
    CompileConfig,
    DebugConfig,
    ParallelismConfig,
    TrainingConfig,
)
from torchtitan.config.override import OverrideConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common.config_utils import decoder_vocab_size

from trn_validate.spec import CheckpointChoice, RunSpec
from trn_validate.workload.attention import OVERRIDES
from trn_validate.workload.compiled import compile_fields
from trn_validate.workload.data import InvariantDataLoader
from trn_validate.workload.fields import batch_fields, refuse_toml
from trn_validate.workload.probe import ProbedMetrics, ProbedTrainer
from trn_validate.workload.tokenizer import ByteTokenizer

REPLACED = ("trainer", "dataloader", "tokenizer", "metrics", "checkpoint", "inner attention")
"""Components that the workload puts its own in place of, recorded by every rank."""

_NEVER = 1_000_000_000
"""A save interval that no run reaches."""


def build_config(spec: RunSpec) -> ProbedTrainer.Config:
    """A trainer's config that does what ``spec`` says.

    Raises:
        RuntimeError: a torchtitan of a generation that is not known.
        ValueError: a model that the registry does not have.
    """
    refuse_toml(titan_config)
    model = _model(spec)
    if spec.device == "cpu":
        model.parallelize_fn = _sum_only(model.parallelize_fn)
    training, parallelism = batch_fields(spec, TrainingConfig, ParallelismConfig)
    vocab_size = model.model.vocab_size
    return ProbedTrainer.Config(
        spec=spec.model_dump_json(),
        model_spec=model,
        dump_folder=spec.dump,
        hf_assets_path=spec.dump,
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model))
        ),
        metrics=ProbedMetrics.Config(log_freq=1, disable_color_printing=True),
        tokenizer=ByteTokenizer.Config(vocab_size=vocab_size),
        dataloader=_data(spec, vocab_size),
        optimizer=default_adamw(lr=spec.learning_rate),
        lr_scheduler=_schedule(spec),
        training=TrainingConfig(
            **training,
            steps=spec.steps,
            mixed_precision_param=spec.compute_dtype,
            # Refused with pp and ep, and of no use away from CUDA.
            disable_cuda_graphs=True,
        ),
        parallelism=_parallelism(spec, parallelism),
        checkpoint=_checkpoint(spec.checkpoint),
        compile=CompileConfig(**compile_fields(spec.compiled, CompileConfig)),
        activation_checkpoint=_RECOMPUTE[spec.activation_checkpointing](),
        comm=CommConfig(
            init_timeout_seconds=spec.init_timeout_seconds,
            train_timeout_seconds=spec.train_timeout_seconds,
        ),
        debug=DebugConfig(seed=spec.seed, deterministic=True),
        override=OverrideConfig(imports=_overrides(spec)),
    )


def _overrides(spec: RunSpec) -> list[str]:
    attention = OVERRIDES[spec.attention]
    kernels = (use.override for use in spec.kernels)
    return [*([attention] if attention else []), *spec.overrides, *kernels]


def _data(spec: RunSpec, vocab_size: int) -> InvariantDataLoader.Config:
    return InvariantDataLoader.Config(
        dataset=spec.data.kind,
        dataset_path=spec.data.path,
        sha256=spec.data.sha256,
        vocab_size=vocab_size,
        global_batch_size=spec.global_batch_size,
        seed=spec.seed,
    )


def _schedule(spec: RunSpec) -> LRSchedulersContainer.Config:
    return LRSchedulersContainer.Config(
        warmup_steps=spec.warmup_steps,
        decay_ratio=0.8,
        decay_type="linear",
        min_lr_factor=0.0,
    )


_RECOMPUTE: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "selective": SelectiveAC.Config,
    "full": FullAC.Config,
}


def _registry(spec: RunSpec) -> Any:
    """The module that has the model.

    A seed is made on the host's CPU, where the fork's module may not import: then upstream's
    module of the same name has the same model, which every rung that loads the seed proves.
    """
    try:
        return importlib.import_module(spec.model.module)
    except Exception:
        fork, _, rest = spec.model.module.partition(".")
        if not spec.checkpoint.create_seed or fork != "torchtitan_neuron":
            raise
        return importlib.import_module(f"torchtitan.{rest}")


def _model(run: RunSpec) -> Any:
    """The registry's ModelSpec, cut and untied as the plan says."""
    choice = run.model
    spec = _registry(run).model_registry(choice.flavor)
    if choice.layers is not None:
        if choice.layers > len(spec.model.layers):
            raise ValueError(
                f"layers is {choice.layers}, but {choice.flavor} has {len(spec.model.layers)}"
            )
        spec.model.layers = spec.model.layers[: choice.layers]
    if choice.tied is False and spec.model.enable_weight_tying:
        spec.model.enable_weight_tying = False
        # A tied embedding is left uninitialised, since the head initialises it.
        spec.model.tok_embeddings = replace(
            spec.model.tok_embeddings, param_init={"weight": partial(nn.init.normal_, std=0.02)}
        )
    elif choice.tied is True and not spec.model.enable_weight_tying:
        raise ValueError(f"{choice.flavor} has untied weights; tying them makes another model")
    return spec


def _sum_only(parallelize: Callable[..., Any]) -> Callable[..., Any]:
    """Make FSDP2 reduce by plain sums.

    torchtitan sets a divide factor of 1, for which FSDP2 picks PREMUL_SUM, which gloo lacks.
    """
    from torch.distributed.fsdp import FSDPModule

    def parallelized(model: Any, **arguments: Any) -> Any:
        model = parallelize(model, **arguments)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return parallelized


def _parallelism(spec: RunSpec, batch: dict[str, Any]) -> ParallelismConfig:
    degrees = spec.degrees
    return ParallelismConfig(
        **batch,
        data_parallel_replicate_degree=degrees.dp_replicate,
        data_parallel_shard_degree=degrees.dp_shard,
        tensor_parallel_degree=degrees.tp,
        context_parallel_degree=degrees.cp,
        pipeline_parallel_degree=degrees.pp,
        expert_parallel_degree=degrees.ep,
        enable_sequence_parallel=spec.sequence_parallel,
        spmd_backend=spec.spmd_backend,
    )


def _checkpoint(choice: CheckpointChoice) -> CheckpointManager.Config:
    saves = choice.create_seed or choice.save_interval or choice.export_safetensors
    return CheckpointManager.Config(
        enable=bool(saves or choice.load_path or choice.resume),
        interval=choice.save_interval or _NEVER,
        keep_latest_k=0,
        create_seed_checkpoint=choice.create_seed,
        initial_load_path=choice.load_path,
        initial_load_model_only=True,
        initial_load_in_hf=choice.load_safetensors,
        load_only=not saves,
        last_save_in_hf=choice.export_safetensors,
        last_save_model_only=choice.export_safetensors or choice.create_seed,
    )
