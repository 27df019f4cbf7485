"""Whether verify finds every alteration, and says what it could not compute again."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.alterations import KINDS, PLAIN_ALONE, SIGNATURE, Bundle
from scripts.mutations import alter, tells
from stages import stages_of
from tests.builders import ROOT
from tests.fake_training import Rig, altered, within
from tests.review.bundles import made_rig, packed
from trn_validate.distances import Apart
from trn_validate.records import Step
from trn_validate.review.archive import opened
from trn_validate.review.rejudge import possible, sketched
from trn_validate.review.verify import ALTERED, CONSISTENT, show_verification, verify, verify_folder
from trn_validate.verdict import Outcome


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A healthy run."""
    return made_rig(tmp_path_factory.mktemp("verify"))


@pytest.fixture(scope="module")
def archive(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, without any tensors."""
    return packed(rig, tmp_path_factory.mktemp("packed") / "b.tar.gz")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run of the same plan."""
    return made_rig(tmp_path_factory.mktemp("other")).run.folder


@pytest.fixture(scope="module")
def bundle(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle, unpacked where it can be altered."""
    folder = tmp_path_factory.mktemp("altered") / "bundle"
    with opened(archive) as source:
        shutil.copytree(source, folder)
    return Bundle(folder)


def test_a_bundle_of_a_healthy_run_is_consistent(rig: Rig, archive: Path) -> None:
    found = verify(archive, stages_of)
    assert found.differences == []
    assert found.run == rig.run.name
    assert found.checks == sum(len(rig.verdict(s.id).checks) for s in stages_of(rig.plan))
    assert found.checks > 300
    assert not found.evidence


def test_the_folder_of_a_run_is_consistent_too(rig: Rig) -> None:
    from trn_validate.review.documents import write_documents

    write_documents(rig.run, rig.plan, rig.gate.standings(), stages_of)
    found = verify_folder(rig.run.folder, stages_of)
    assert found.differences == []
    assert found.not_recomputed == []


def test_a_folder_may_be_named_from_where_one_stands(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bundle.folder.parent)
    assert verify(Path(bundle.folder.name), stages_of).differences == []


def test_what_was_left_out_is_named(archive: Path) -> None:
    told = verify(archive, stages_of).not_recomputed
    assert any("parallelism.tp/1/tp/captures/gradient.stage-0.safetensors" in one for one in told)
    assert all(one.partition(":")[0].endswith(("tensors", ".distcp", ".metadata")) for one in told)


def test_a_failed_run_is_consistent_and_not_passed(tmp_path: Path) -> None:
    wrong = within("tp", altered(Step, step=3, loss=lambda loss: loss + 0.5))
    rig = made_rig(tmp_path / "run", wrong)
    assert rig.verdict("parallelism.tp").outcome is Outcome.FAILED
    found = verify(packed(rig, tmp_path / "b.tar.gz"), stages_of)
    assert found.differences == []
    assert "failed at parallelism.tp" in found.decision


def test_the_answer_says_that_it_shows_no_authorship(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_verification(archive, stages_of) == CONSISTENT
    assert "not who made it" in capsys.readouterr().out
    assert show_verification(archive, stages_of, as_json=True) == CONSISTENT
    shown = json.loads(capsys.readouterr().out)
    assert shown["consistent"] is True
    assert "not who made it" in shown["shows"]


def test_no_torch_is_imported(archive: Path) -> None:
    code = (
        "import sys; from stages import stages_of; from pathlib import Path\n"
        "from trn_validate.review.verify import verify\n"
        f"assert not verify(Path({str(archive)!r}), stages_of).differences\n"
        "assert not {'torch', 'torchtitan'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _raised(verdict: dict[str, Any]) -> None:
    check = next(c for c in verdict["checks"] if c["name"] == "tp: gradient of step 1")
    check["basis"]["floor"] = check["limit"] = 0.2


def _smaller(verdict: dict[str, Any]) -> None:
    check = next(c for c in verdict["checks"] if c["name"] == "tp: loss against the reference")
    check["measured"] = 0.0


def _without(verdict: dict[str, Any]) -> None:
    verdict["checks"] = verdict["checks"][1:]
    verdict["expects"] = verdict["expects"][1:]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_raised, "parallelism.tp: check 'tp: gradient of step 1' says limit 0.2"),
        (_smaller, "parallelism.tp: check 'tp: loss against the reference' says measured 0.0"),
        (_without, "parallelism.tp: check 'tp: ranks that finished' is missing"),
    ],
)
def test_a_changed_verdict_with_every_hash_after_it_is_found(
    bundle: Bundle, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    verdict = bundle.read("parallelism.tp.json")
    change(verdict)
    bundle.write("parallelism.tp.json", verdict)
    bundle.make_consistent()
    try:
        found = verify_folder(bundle.folder, stages_of)
    finally:
        bundle.restore()
    assert found.status == ALTERED
    assert any(one.startswith(said) for one in found.differences), found.differences
    assert all(one.startswith("parallelism.tp: ") for one in found.differences)


def test_a_raised_limit_of_the_plan_is_found(bundle: Bundle) -> None:
    path = bundle.folder / "plan.yaml"
    path.write_text(path.read_text().replace("factor: 5.0", "factor: 50.0"))
    assert bundle.differs()
    bundle.make_consistent()
    found = verify_folder(bundle.folder, stages_of)
    bundle.restore()
    assert any("stale: changed: plan" in one for one in found.differences)


def test_files_of_another_bundle_are_found(bundle: Bundle, other: Path) -> None:
    taken = Bundle(bundle.folder, other)
    tally = alter(taken, 0, random.Random(3), consistent=True)
    assert not tally.made
    for name in ("parallelism.tp.json", "baseline.eager/1/reference/records/rank-0.jsonl"):
        (bundle.folder / name).write_bytes((other / name).read_bytes())
        bundle.make_consistent()
        assert tells(bundle.folder), name
        bundle.restore()


@pytest.mark.parametrize("consistent", [False, True])
def test_alterations_are_found_or_need_the_signature(bundle: Bundle, consistent: bool) -> None:
    kinds = len(KINDS) - (len(PLAIN_ALONE) if consistent else 0)
    tally = alter(bundle, 2 * kinds, random.Random(7), consistent=consistent)
    assert tally.missed == []
    assert min(tally.made.values()) == 2
    told = sum(found for kind, found in tally.found.items() if kind not in SIGNATURE)
    assert told == sum(made for kind, made in tally.made.items() if kind not in SIGNATURE)


def test_the_kinds_that_need_the_signature_are_in_the_documentation() -> None:
    text = (ROOT / "docs/review-bundle.md").read_text(encoding="utf-8")
    assert all(f"`{kind}`" in text for kind in SIGNATURE)
    assert KINDS.keys() >= SIGNATURE


@pytest.mark.parametrize(
    ("told", "expected"),
    [('{"capture": "sketch"}', True), ('{"capture": "full"}', False), ("[]", False), ("{", False)],
)
def test_norms_of_sketches_are_told_by_what_the_launch_was_asked(
    tmp_path: Path, told: str, expected: bool
) -> None:
    assert not sketched(tmp_path)
    (tmp_path / "spec.json").write_text(told)
    assert sketched(tmp_path) is expected


def test_norms_that_cannot_belong_together_are_told_from_those_that_can() -> None:
    right = Apart(name="a", reference=2.0, difference=0.5, factor=1.0, rest=0.5)
    assert possible(right)
    scaled = Apart(name="a", reference=2.0, difference=1.0, factor=1.5, rest=0.0)
    assert possible(scaled)
    assert possible(Apart(name="a", reference=None))
    assert not possible(right.model_copy(update={"difference": 0.4}))
    assert not possible(scaled.model_copy(update={"factor": 1.0}))
