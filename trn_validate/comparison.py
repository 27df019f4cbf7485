"""Everything that one layout owes against another: the same steps, gradients and parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.control import tolerance_of, trial_kept
from trn_validate.folded import GlobalStep, Records
from trn_validate.judging import common_checks, common_names
from trn_validate.launching import Trial
from trn_validate.parity import Limit, Noise, parity_checks, parity_names
from trn_validate.tensors import Kept, tensor_checks, tensor_names


@dataclass(frozen=True)
class Yardstick:
    """What a run is held against, and how far rounding alone moves it."""

    steps: tuple[GlobalStep, ...]
    parameters: int
    """Elements of the whole model."""
    kept: Kept
    noise: Noise

    def starting_from(self, other: Yardstick) -> Yardstick:
        """The same, with the tensors of the start that ``other`` has of the same bits."""
        return replace(self, kept=replace(self.kept, start=other.kept.start))


def yardstick(trial: Trial, noise: Noise) -> Yardstick:
    """A finished launch as what others are held against."""
    return yardstick_of(trial.records, trial_kept(trial), noise)


def yardstick_of(records: Records, own: Kept, noise: Noise) -> Yardstick:
    """What ranks recorded and kept, as what others are held against."""
    return Yardstick(
        steps=records.steps,
        parameters=records.parameters,
        kept=own,
        noise=noise,
    )


def comparison_names(name: str) -> tuple[str, ...]:
    """Names of the checks that :func:`comparison_checks` makes."""
    return (*common_names(name), *parity_names(name), *tensor_names(name))


def comparison_checks(plan: Plan, reference: Yardstick, trial: Trial) -> list[Check]:
    """Whether a launch in another layout trains as the reference does.

    Raises:
        EvidenceError: a file of tensors is missing or is not what its record says.
    """
    name = trial.spec.name
    tolerance = tolerance_of(plan, trial.spec.compute_dtype, reference.noise)
    return [
        *common_checks(plan, trial, parameters=reference.parameters),
        *parity_checks(
            name,
            reference.steps,
            trial.records.steps,
            steps=trial.spec.steps,
            loss=Limit.of(tolerance.basis("loss_absolute")),
            grad_norm=Limit.of(tolerance.basis("grad_norm_relative")),
        ),
        *tensor_checks(name, reference.kept, trial_kept(trial), tolerance),
    ]
