"""Whether what a stage leaves suffices to compute what its checks measured."""

import json
import math
from pathlib import Path

import pytest

from tests.fake_training import Rig, calm_host
from trn_validate.distances import Apart, Comparison, Distances, deviations, read_distances
from trn_validate.errors import EvidenceError
from trn_validate.observed import Looking, Observed, Remembering, read_observed
from trn_validate.tensors import largest

STAGES = ("baseline.eager", "kernels.compile", "kernels.nki")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A run of every stage of the plan."""
    with pytest.MonkeyPatch.context() as patch:
        calm_host(patch)
        made = Rig(tmp_path_factory.mktemp("distances"))
        assert made.walk() == 0
    return made


@pytest.mark.parametrize("stage", STAGES)
def test_what_the_checks_measured_follows_from_the_file(rig: Rig, stage: str) -> None:
    checks = {check.name: check.measured for check in rig.verdict(stage).checks}
    found = read_distances(rig.run.folder / stage / "1" / "distances.json").comparisons
    kinds = {"gradient": "gradient of step 1", "change": "parameters after the last step"}
    judged = [
        (largest(one.deviations), checks[name])
        for one in found
        if (name := f"{one.candidate.rpartition('/')[2]}: {kinds[one.of]}") in checks
    ]
    assert len(judged) >= 2
    assert all(ours == theirs < math.inf for ours, theirs in judged)


def test_the_control_of_a_ladder_is_somewhere_else(rig: Rig) -> None:
    found = read_distances(rig.run.folder / "baseline.eager/1/distances.json").comparisons
    control = [one for one in found if one.candidate.endswith("/control")]
    assert {one.of for one in control} == {"gradient", "change"}
    assert all(largest(one.deviations) > 0 for one in control)


def test_a_verdict_names_what_was_left_with_its_digest(rig: Rig) -> None:
    for stage in STAGES:
        named = {a.path: a for a in rig.verdict(stage).artifacts}
        for name in ("distances.json", "observed.json"):
            path = f"{stage}/1/{name}"
            assert rig.run.verify(named[path]) == rig.run.folder / path


def test_every_launch_is_kept_in_its_order(rig: Rig) -> None:
    for stage in STAGES:
        observed = read_observed(rig.run.folder / stage / "1" / "observed.json")
        commands = rig.verdict(stage).commands
        assert [one.name for one in observed.launches] == [one.name for one in commands]


def test_a_tensor_that_a_side_lacks_is_infinitely_far() -> None:
    here = Apart(name="a", reference=1.0, difference=0.5)
    lost = Apart(name="b", reference=2.0)
    new = Apart(name="c", reference=None)
    assert [one.relative for one in deviations([here, lost, new])] == [0.5, math.inf, math.inf]


def test_a_small_tensor_is_held_against_a_part_of_all() -> None:
    large = Apart(name="large", reference=1.0, difference=0.0)
    small = Apart(name="small", reference=1e-9, difference=1e-6)
    assert deviations([large, small])[1].relative == pytest.approx(1.0)


def test_numbers_that_are_none_survive_the_file(tmp_path: Path) -> None:
    odd = Apart(name="a", reference=1.0, difference=math.nan)
    comparison = Comparison(of="gradient", reference="r", candidate="c", tensors=(odd,))
    path = tmp_path / "distances.json"
    path.write_text(Distances(comparisons=(comparison,)).model_dump_json())
    (read,) = read_distances(path).comparisons
    assert math.isnan(read.deviations[0].relative)


@pytest.mark.parametrize("text", ["", "{", '{"comparisons": 1}', '{"more": []}'])
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "left.json"
    path.write_text(text)
    with pytest.raises(EvidenceError, match=r"left\.json"):
        read_distances(path)
    path.write_text(text or "[]")
    with pytest.raises(EvidenceError, match=r"left\.json"):
        read_observed(path)


def test_an_answer_is_given_again_without_a_look() -> None:
    looking = Looking()
    seen = {"files": ["a", "b"]}
    assert looking.see("files", dict[str, list[str]], lambda: seen) == seen
    kept = Observed.model_validate_json(json.dumps({"seen": looking.seen}))
    again = Remembering(kept)
    assert again.see("files", dict[str, list[str]], lambda: {}) == seen
    with pytest.raises(EvidenceError, match="no answer"):
        again.see("other", str, lambda: "")
    with pytest.raises(EvidenceError, match="is none"):
        again.see("files", int, lambda: 0)


def test_nothing_is_looked_at_twice_under_one_name() -> None:
    looking = Looking()
    looking.see("it", int, lambda: 1)
    with pytest.raises(ValueError, match="before"):
        looking.see("it", int, lambda: 2)
