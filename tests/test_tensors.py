from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import ladder_of
from tests.fake_captures import MOMENTS, SHAPES
from tests.fake_training import (
    Defect,
    added,
    bent,
    carried_out,
    doubled,
    drifted,
    forgotten,
    lacking,
    unwritten,
)
from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.deviations import Deviation
from trn_validate.errors import EvidenceError
from trn_validate.parity import Noise, Tolerance
from trn_validate.tensors import (
    Kept,
    changes,
    kept,
    kind,
    largest,
    slopes,
    tensor_checks,
    tensor_names,
)

NAMES = list(SHAPES)
EMBEDDING, WQ, NORM, HEAD = NAMES[0], NAMES[1], NAMES[2], NAMES[-1]
COMPARED, REPLICAS, START, GRADIENT, END = (
    name.removeprefix("fsdp: ") for name in tensor_names("fsdp")
)
# As a real run on the CPU in float32 measured them.
NOISE = Noise(
    loss_absolute=1e-6,
    grad_norm_relative=1e-6,
    gradient_relative=2.6e-6,
    parameter_relative=2.1e-3,
)
RUNGS: list[dict[str, Any]] = [
    {"name": "baseline"},
    {"name": "fsdp", "extends": "baseline", "dp_shard": 2},
    {"name": "tp", "extends": "fsdp", "tp": 2},
    {"name": "pp", "extends": "fsdp", "pp": 2},
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return ladder_of(tmp_path_factory.mktemp("plan"), RUNGS)


@pytest.fixture(scope="module")
def reference(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    trial = carried_out(tmp_path_factory.mktemp("reference"), plan, "baseline", keep_start=True)
    return kept(trial.records, trial.captures)


class Bench:
    """A candidate with defects, judged against the reference."""

    def __init__(self, plan: Plan, reference: Kept, folder: Path) -> None:
        self.plan = plan
        self.reference = reference
        self.folder = folder
        self.noise = NOISE
        self.checks: dict[str, Check] = {}

    def candidate(self, *defects: Defect, rung: str = "fsdp", **changes: Any) -> Kept:
        """What a launch with these defects kept."""
        trial = carried_out(self.folder, self.plan, rung, *defects, **changes)
        return kept(trial.records, trial.captures)

    def failing(self, candidate: Kept, *, against: Kept | None = None) -> list[str]:
        """Names of the checks that say no."""
        limits = self.plan.limits
        tolerance = Tolerance(limits.of("float32"), limits.factor, self.noise)
        checks = tensor_checks("fsdp", against or self.reference, candidate, tolerance)
        assert tuple(check.name for check in checks) == tensor_names("fsdp")
        self.checks = {check.name.removeprefix("fsdp: "): check for check in checks}
        return [name for name, check in self.checks.items() if not check.passed]

    def detail(self, name: str) -> str:
        """The detail of a check of the last comparison."""
        return self.checks[name].detail


@pytest.fixture
def bench(plan: Plan, reference: Kept, tmp_path: Path) -> Bench:
    return Bench(plan, reference, tmp_path)


def other(array: Any) -> Any:
    """Values of the same size that are no multiple of the old ones."""
    return np.float32(np.roll(array, 1, axis=-1))


def nowhere(*moments: str) -> Defect:
    """A defect in which no rank records these moments."""

    def apply(launch: Any) -> None:
        for rank in launch.lines:
            for moment in moments:
                forgotten(moment, rank)(launch)

    return apply


# What holds


@pytest.mark.parametrize("rung", ["baseline", "fsdp", "tp", "pp"])
@pytest.mark.parametrize("mode", ["full", "sketch"])
def test_a_layout_that_trains_as_the_reference_does_passes(
    bench: Bench, rung: str, mode: str
) -> None:
    assert bench.failing(bench.candidate(rung=rung, capture=mode)) == []
    gradient = bench.checks[GRADIENT].measured
    assert isinstance(gradient, float)
    assert (gradient > 0) is (rung != "baseline")
    assert bench.detail(COMPARED) == "7 parameters, matched by name"
    assert bench.detail(START) == "7 parameters, bit by bit"
    assert bench.detail(GRADIENT).startswith("largest in ")


def test_a_comparison_by_sketches_says_so(plan: Plan, tmp_path: Path, bench: Bench) -> None:
    changed = {"keep_start": True, "capture": "sketch"}
    trial = carried_out(tmp_path / "sketched", plan, "baseline", **changed)
    sketched = kept(trial.records, trial.captures)
    assert bench.failing(bench.candidate(capture="sketch"), against=sketched) == []
    assert bench.detail(COMPARED) == "7 parameters, matched by name, by random sketches of each"


def test_the_limit_of_a_tensor_shows_what_it_follows_from(bench: Bench) -> None:
    bench.failing(bench.candidate())
    gradient, end = bench.checks[GRADIENT], bench.checks[END]
    assert (gradient.source, end.source) == ("measured", "measured")
    assert gradient.basis is not None
    assert end.basis is not None
    assert (gradient.limit, gradient.basis.control) == (5 * 2.6e-6, 2.6e-6)
    assert (end.limit, end.basis.control) == (5 * 2.1e-3, 2.1e-3)
    assert (gradient.basis.floor, gradient.basis.ceiling) == (1e-5, 1e-4)


@pytest.mark.parametrize(("control", "failed"), [(2.6e-6, [GRADIENT]), (1e-5, [])])
def test_a_noisier_control_forgives_more(bench: Bench, control: float, failed: list[str]) -> None:
    bench.noise = Noise(1e-6, 1e-6, control, 2.1e-3)
    assert bench.failing(bench.candidate(bent("gradient", lambda a: a * 1.00003))) == failed


# Gradients


@pytest.mark.parametrize(
    ("defect", "detail"),
    [
        pytest.param(
            bent("gradient", doubled),
            f"{EMBEDDING}, {WQ}, {NORM} and 4 more; every parameter: a constant factor of 2",
            id="all doubled",
        ),
        pytest.param(
            bent("gradient", lambda a: a / 4),
            f"{EMBEDDING}, {WQ}, {NORM} and 4 more; every parameter: a constant factor of 0.25",
            id="all a quarter",
        ),
        pytest.param(
            bent("gradient", lambda a: -a, HEAD),
            f"{HEAD}; these: a constant factor of -1",
            id="one with the wrong sign",
        ),
        pytest.param(
            bent("gradient", other, NORM, "norm.weight"),
            f"{NORM}, norm.weight; only weights that are replicated under tp (norms)",
            id="norms",
        ),
        pytest.param(
            bent("gradient", other, NAMES[3], NAMES[4]),
            f"{NAMES[3]}, {NAMES[4]}; only layers.1",
            id="one layer",
        ),
        pytest.param(
            bent("gradient", other, WQ, NAMES[3]),
            f"{WQ}, {NAMES[3]}; 2 of 7 parameters",
            id="two layers",
        ),
        pytest.param(
            bent("gradient", other), "; every parameter is off, by no common factor", id="all"
        ),
        pytest.param(
            bent("gradient", np.zeros_like, EMBEDDING, HEAD),
            f"{EMBEDDING}, {HEAD}; all zero",
            id="zero",
        ),
        pytest.param(bent("gradient", np.zeros_like), "; all zero", id="all of them zero"),
        pytest.param(
            bent("gradient", lambda a: a * math.nan, WQ),
            f"{WQ}; not a finite number",
            id="NaN",
        ),
        pytest.param(
            bent("gradient", lambda a: a * math.inf, WQ),
            f"{WQ}; not a finite number",
            id="infinite",
        ),
    ],
)
def test_a_wrong_gradient_fails_by_that_and_says_what_it_looks_like(
    bench: Bench, defect: Defect, detail: str
) -> None:
    assert bench.failing(bench.candidate(defect)) == [GRADIENT]
    assert bench.detail(GRADIENT).startswith("over the limit: ")
    assert bench.detail(GRADIENT).endswith(detail)


@pytest.mark.parametrize("name", NAMES)
def test_a_single_entry_of_any_gradient_is_seen(bench: Bench, name: str) -> None:
    def spoil(array: Any) -> Any:
        changed = array.copy()
        changed.flat[-1] += 1e-3
        return changed

    assert bench.failing(bench.candidate(bent("gradient", spoil, name))) == [GRADIENT]
    assert name in bench.detail(GRADIENT)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_no_distance_that_a_limit_allows(
    bench: Bench, value: float
) -> None:
    def spoil(array: Any) -> Any:
        changed = array.copy()
        changed.flat[0] = value
        return changed

    assert bench.failing(bench.candidate(bent("gradient", spoil, EMBEDDING))) == [GRADIENT]
    assert bench.checks[GRADIENT].measured == math.inf


def test_rows_of_a_single_shard_are_named(bench: Bench) -> None:
    def shard(array: Any) -> Any:
        changed = array.copy()
        changed[4:] = other(changed[4:])
        return changed

    assert bench.failing(bench.candidate(bent("gradient", shard, HEAD))) == [GRADIENT]
    assert bench.detail(GRADIENT) == (
        f"over the limit: {HEAD}; 1 of 7 parameters; "
        f"in {HEAD} only rows 4 to 7 of 8: one rank's shard"
    )


# Parameters that are missing, new or other


@pytest.mark.parametrize(
    ("moment", "what", "failed"), [("gradient", "gradient", GRADIENT), ("end", "weights", END)]
)
def test_a_parameter_that_is_missing_is_not_passed_over(
    bench: Bench, moment: str, what: str, failed: str
) -> None:
    assert bench.failing(bench.candidate(lacking(moment, WQ))) == [COMPARED, failed]
    assert bench.checks[COMPARED].measured == 1
    assert bench.detail(COMPARED) == f"{WQ} has no {what}"
    assert bench.detail(failed).startswith(f"over the limit: {WQ}; ")
    assert bench.detail(failed).endswith("missing or of another shape")
    assert bench.checks[failed].measured == math.inf


@pytest.mark.parametrize(("moment", "failed"), [("gradient", GRADIENT), ("end", END)])
def test_a_parameter_that_the_reference_does_not_have_is_not_passed_over(
    bench: Bench, moment: str, failed: str
) -> None:
    extra = added(moment, "bias", np.zeros(4, dtype=np.float32))
    assert bench.failing(bench.candidate(extra)) == [COMPARED, failed]
    assert bench.detail(COMPARED) == "bias is not in the reference"
    assert bench.detail(failed).startswith("over the limit: bias; ")
    assert bench.detail(failed).endswith("missing or of another shape")


def test_a_parameter_of_another_shape_is_not_compared(bench: Bench) -> None:
    assert bench.failing(bench.candidate(bent("gradient", np.ravel, HEAD))) == [GRADIENT]
    assert bench.detail(GRADIENT) == f"over the limit: {HEAD}; missing or of another shape"


def test_a_parameter_with_another_name_is_both_missing_and_new(bench: Bench) -> None:
    defects = [
        defect
        for moment in MOMENTS
        for defect in (
            added(moment, f"_orig_mod.{NORM}", np.ones(4, dtype=np.float32)),
            lacking(moment, NORM),
        )
    ]
    assert bench.failing(bench.candidate(*defects)) == [COMPARED, START, GRADIENT, END]
    assert bench.checks[COMPARED].measured == 4
    assert bench.checks[START].measured == 2


# Weights at the start and after the last step


@pytest.mark.parametrize("name", NAMES)
def test_other_weights_at_the_start_fail_by_one_unit_in_the_last_place(
    bench: Bench, name: str
) -> None:
    def ulp(array: Any) -> Any:
        changed = array.copy()
        changed.flat[0] = np.nextafter(changed.flat[0], np.float32(9))
        return changed

    assert bench.failing(bench.candidate(bent("start", ulp, name))) == [START]
    assert (bench.checks[START].measured, bench.detail(START)) == (1, name)


def test_all_other_weights_at_the_start_are_counted(bench: Bench) -> None:
    assert bench.failing(bench.candidate(bent("start", doubled))) == [START]
    assert bench.checks[START].measured == 7
    assert bench.detail(START) == f"{EMBEDDING}, {WQ}, {NORM} and 4 more"


def test_parameters_that_left_the_path_while_the_gradient_is_right_fail(bench: Bench) -> None:
    # Training moved a parameter by about a tenth.
    assert bench.failing(bench.candidate(bent("end", lambda a: a + 0.01, HEAD))) == [END]
    assert bench.detail(END).startswith(f"over the limit: {HEAD}; ")


def test_an_update_that_one_parameter_never_got_fails(bench: Bench, plan: Plan) -> None:
    assert bench.reference.start is not None
    begun = dict(bench.reference.start.tensors())
    frozen = bent("end", lambda a: np.float32(begun[NORM]), NORM)
    assert bench.failing(bench.candidate(frozen)) == [END]
    assert bench.checks[END].measured == pytest.approx(1.0)
    assert bench.detail(END) == f"over the limit: {NORM}; change since the seed, all zero"


def test_updates_of_half_the_size_are_told_by_their_factor(bench: Bench) -> None:
    assert bench.reference.start is not None
    begun = dict(bench.reference.start.tensors())

    def halved_from(start: Any) -> Any:
        return lambda end: np.float32((end + start) / 2)

    halved = [bent("end", halved_from(begun[name]), name) for name in NAMES]
    assert bench.failing(bench.candidate(*halved)) == [END]
    assert bench.checks[END].measured == pytest.approx(0.5, rel=1e-3)
    assert bench.detail(END).endswith(
        "change since the seed, every parameter: a constant factor of 0.5"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_parameter_that_is_no_number_at_the_end_fails(bench: Bench, value: float) -> None:
    spoil = bent("end", lambda a: a * np.float32(value), NORM)
    assert bench.failing(bench.candidate(spoil)) == [END]
    assert bench.detail(END) == (
        f"over the limit: {NORM}; change since the seed, not a finite number"
    )


def test_a_gradient_that_neither_side_has_is_named(bench: Bench) -> None:
    without = lacking("gradient", NORM)
    reference = bench.candidate(without, rung="baseline", keep_start=True)
    assert bench.failing(bench.candidate(without), against=reference) == [COMPARED]
    assert bench.detail(COMPARED) == f"{NORM} has no gradient in the reference"


def test_weights_that_both_sides_freeze_are_counted(bench: Bench) -> None:
    frozen = lacking("gradient", NORM, asked=False)
    reference = bench.candidate(frozen, rung="baseline", keep_start=True)
    assert bench.failing(bench.candidate(frozen), against=reference) == []
    assert bench.detail(COMPARED) == "7 parameters, matched by name, 1 of them frozen"


# Replicas


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_replica_that_drifted_fails_by_that(bench: Bench, moment: str) -> None:
    drift = drifted(3, moment, NORM)
    assert bench.failing(bench.candidate(drift, rung="tp")) == [REPLICAS]
    assert bench.detail(REPLICAS) == f"{moment} of {NORM}: rank 3 and rank 0 differ"


def test_a_rank_that_kept_nothing_does_not_agree(bench: Bench) -> None:
    assert bench.failing(bench.candidate(forgotten("gradient", 1))) == [REPLICAS]
    assert bench.detail(REPLICAS) == "rank 1 kept no gradient"


# Nothing to compare is not a pass


def test_a_launch_that_kept_nothing_passes_nothing(bench: Bench) -> None:
    candidate = bench.candidate(capture="none")
    assert candidate == Kept(None, None, None, candidate.split)
    assert bench.failing(candidate) == [COMPARED, REPLICAS, START, GRADIENT, END]
    assert bench.detail(GRADIENT) == bench.detail(END) == "nothing was kept"
    assert bench.checks[GRADIENT].measured == math.inf


def test_a_reference_that_kept_nothing_lets_nothing_pass(bench: Bench) -> None:
    nothing = Kept(None, None, None, "")
    candidate = bench.candidate()
    assert bench.failing(candidate, against=nothing) == [COMPARED, START, GRADIENT, END]
    assert bench.failing(nothing, against=nothing) == [COMPARED, REPLICAS, START, GRADIENT, END]


@pytest.mark.parametrize(
    ("moment", "failed"),
    [
        ("start", [REPLICAS, START]),
        ("gradient", [COMPARED, REPLICAS, GRADIENT]),
        ("end", [COMPARED, REPLICAS, END]),
    ],
)
def test_a_moment_that_no_rank_kept_fails_what_is_asked_of_it(
    bench: Bench, moment: str, failed: list[str]
) -> None:
    assert bench.failing(bench.candidate(nowhere(moment))) == failed


def test_a_reference_without_tensors_of_the_start_judges_no_parameters(
    bench: Bench, reference: Kept
) -> None:
    candidate = bench.candidate()
    less = Kept(None, reference.gradient, reference.end, "")
    assert bench.failing(candidate, against=less) == [START, END]


@pytest.mark.parametrize("moment", ["gradient", "end"])
def test_a_file_that_is_gone_is_no_comparison(bench: Bench, moment: str) -> None:
    candidate = bench.candidate(unwritten(moment))
    with pytest.raises(EvidenceError, match="no file of tensors"):
        bench.failing(candidate)


# The figures behind the checks


def test_distances_of_a_run_from_itself_are_none(reference: Kept) -> None:
    assert largest(slopes(reference, reference)) == 0.0
    assert largest(changes(reference, reference)) == 0.0


def test_the_largest_of_no_distances_is_infinite_and_so_is_one_that_is_no_number() -> None:
    assert largest([]) == math.inf
    assert largest([Deviation("a", 1e-9)]) == 1e-9
    assert largest([Deviation("a", math.nan), Deviation("b", 1e-9)]) == math.inf
    assert largest([Deviation("b", 1e-9), Deviation("a", math.nan)]) == math.inf
    assert largest([Deviation("a", math.inf), Deviation("b", 1e-9)]) == math.inf


def off(name: str, factor: float = 1.3, rest: float = 0.5) -> Deviation:
    return Deviation(name, 0.5, factor, rest)


@pytest.mark.parametrize(
    ("outside", "found"),
    [
        ([off(WQ, 2.0, 0.0)], "these: a constant factor of 2"),
        ([off(WQ, 2.0, 0.0), off(HEAD, 2.01, 0.01)], "these: a constant factor of 2"),
        ([off(WQ, 2.0, 0.0), off(HEAD, 3.0, 0.0)], "2 of 9 parameters"),
        ([off(WQ, 2.0, 0.1)], "only layers.0"),
        ([off("layers.10.wq.weight"), off("layers.1.wq.weight")], "2 of 9 parameters"),
        ([off("layers.10.wq.weight"), off("layers.10.wk.weight")], "only layers.10"),
        ([off(WQ), off(HEAD)], "2 of 9 parameters"),
        ([off(HEAD)], "1 of 9 parameters"),
        ([off(HEAD, 0.0)], "all zero"),
        ([off(HEAD, 0.0), off(WQ)], "2 of 9 parameters"),
        ([Deviation("a", math.inf), Deviation("b", math.nan)], "not a finite number"),
        ([Deviation("a", math.inf), off(WQ)], "missing or of another shape"),
        ([off(NORM, math.nan), off(NORM, math.nan)], "only weights that are replicated"),
    ],
)
def test_a_fault_is_described_by_what_it_has_in_common(
    outside: list[Deviation], found: str
) -> None:
    rest = [Deviation(f"fine.{place}", 0.0) for place in range(9 - len(outside))]
    assert kind(outside, [*outside, *rest]).startswith(found)
