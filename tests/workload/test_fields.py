from __future__ import annotations

import types
from dataclasses import dataclass

import pytest

from tests.builders import run_spec
from trn_validate.spec import Degrees
from trn_validate.workload.fields import batch_fields, generation, refuse_toml


@dataclass
class SampleTraining:
    """The batch of 0.3.0, in samples."""

    local_batch_size: int = 8
    global_batch_size: int = -1
    seq_len: int = 2048
    steps: int = 10_000


@dataclass
class TokenTraining:
    """The batch of the generation after it, in tokens."""

    num_tokens_per_microbatch_per_dp_rank: int = 16_384
    num_tokens_per_train_step: int = -1
    max_context_length: int = 2048
    steps: int = 10_000


@dataclass
class SampleParallelism:
    """0.3.0 derives the number of microbatches itself."""

    pipeline_parallel_degree: int = 1


@dataclass
class TokenParallelism:
    """The generation after it is told the number of microbatches."""

    pipeline_parallel_degree: int = 1
    num_pp_microbatches: int = 1


@dataclass
class OtherTraining:
    """A generation that nobody has seen."""

    seq_len: int = 2048
    tokens: int = 0


def test_the_generation_of_samples_is_told_the_batch_in_samples() -> None:
    spec = run_spec(local_batch_size=2, degrees=Degrees(dp_shard=2))
    training, parallelism = batch_fields(spec, SampleTraining, SampleParallelism)
    assert training == {"local_batch_size": 2, "global_batch_size": 4, "seq_len": 256}
    assert parallelism == {}


def test_the_generation_of_tokens_is_told_the_batch_in_tokens() -> None:
    spec = run_spec(local_batch_size=2, degrees=Degrees(dp_shard=2))
    training, parallelism = batch_fields(spec, TokenTraining, TokenParallelism)
    assert training == {
        "num_tokens_per_microbatch_per_dp_rank": 512,
        "num_tokens_per_train_step": 1024,
        "max_context_length": 256,
    }
    assert parallelism == {}


def test_a_pipeline_of_the_generation_of_tokens_is_told_its_microbatches() -> None:
    spec = run_spec(local_batch_size=4, degrees=Degrees(pp=2))
    training, parallelism = batch_fields(spec, TokenTraining, TokenParallelism)
    assert training["num_tokens_per_microbatch_per_dp_rank"] == 256
    assert training["num_tokens_per_train_step"] == 1024
    assert parallelism == {"num_pp_microbatches": 4}


def test_a_pipeline_of_the_generation_of_samples_is_told_nothing_more() -> None:
    spec = run_spec(degrees=Degrees(pp=2))
    assert batch_fields(spec, SampleTraining, SampleParallelism)[1] == {}


@pytest.mark.parametrize(
    ("local", "degrees"),
    [
        (4, Degrees()),
        (1, Degrees()),
        (2, Degrees(dp_shard=2)),
        (1, Degrees(dp_replicate=2, dp_shard=2)),
        (4, Degrees(tp=2, cp=2)),
        (4, Degrees(pp=2)),
        (2, Degrees(pp=2, dp_shard=2)),
    ],
    ids=str,
)
def test_both_generations_keep_the_tokens_of_a_step(local: int, degrees: Degrees) -> None:
    spec = run_spec(local_batch_size=local, degrees=degrees)
    samples, _ = batch_fields(spec, SampleTraining, SampleParallelism)
    assert samples["global_batch_size"] * samples["seq_len"] == spec.tokens_per_step
    tokens, pipeline = batch_fields(spec, TokenTraining, TokenParallelism)
    assert tokens["num_tokens_per_train_step"] == spec.tokens_per_step
    microbatches = pipeline.get("num_pp_microbatches", 1)
    consumed = tokens["num_tokens_per_microbatch_per_dp_rank"] * microbatches
    assert consumed * spec.degrees.data_parallel * spec.accumulation == spec.tokens_per_step


@pytest.mark.parametrize("training", [SampleTraining, TokenTraining])
def test_every_value_is_for_a_field_that_the_generation_has(training: type) -> None:
    values, pipeline = batch_fields(run_spec(degrees=Degrees(pp=2)), training, TokenParallelism)
    made = training(**values)
    assert {name: getattr(made, name) for name in values} == values
    assert TokenParallelism(**pipeline) is not None


def test_the_installed_torchtitan_is_of_a_known_generation() -> None:
    from torchtitan.config.configs import ParallelismConfig, TrainingConfig

    values, pipeline = batch_fields(run_spec(), TrainingConfig, ParallelismConfig)
    for kind, given in ((TrainingConfig, values), (ParallelismConfig, pipeline)):
        made = kind(**given)
        assert {name: getattr(made, name) for name in given} == given


def test_an_unknown_generation_is_refused_with_the_fields_that_it_lacks() -> None:
    with pytest.raises(RuntimeError) as caught:
        batch_fields(run_spec(), OtherTraining, SampleParallelism)
    assert str(caught.value) == (
        "this torchtitan's TrainingConfig is of no known generation: it lacks "
        "global_batch_size, local_batch_size (0.3.0) and max_context_length, "
        "num_tokens_per_microbatch_per_dp_rank, num_tokens_per_train_step (the one after)"
    )


def test_a_pipeline_without_a_field_for_its_microbatches_is_refused() -> None:
    with pytest.raises(RuntimeError, match="ParallelismConfig lacks num_pp_microbatches"):
        batch_fields(run_spec(degrees=Degrees(pp=2)), TokenTraining, SampleParallelism)


def test_the_generation_of_toml_is_refused_by_name() -> None:
    old = types.SimpleNamespace(JobConfig=object)
    with pytest.raises(RuntimeError, match=r"configured by TOML \(torchtitan\.config\.JobConfig"):
        refuse_toml(old)


def test_the_installed_torchtitan_is_not_refused_as_one_of_toml() -> None:
    import torchtitan.config

    refuse_toml(torchtitan.config)
    assert not hasattr(torchtitan.config, "JobConfig")


@pytest.mark.parametrize(
    ("training", "told"),
    [(SampleTraining, "samples"), (TokenTraining, "tokens"), (SampleParallelism, "other")],
)
def test_a_generation_is_told_by_its_fields(training: type, told: str) -> None:
    assert generation(types.SimpleNamespace(TrainingConfig=training)) == told


def test_a_generation_with_a_job_config_is_the_one_of_toml() -> None:
    config = types.SimpleNamespace(JobConfig=object, TrainingConfig=SampleTraining)
    assert generation(config) == "TOML"


def test_a_torchtitan_without_a_training_config_is_another() -> None:
    assert generation(types.SimpleNamespace()) == "other"
