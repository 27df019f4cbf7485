"""Whether a bundle says what its own records say: everything that can be computed is, again.

It shows that a bundle is consistent, not who made it: whoever alters a record and computes all
that follows from it makes another consistent bundle. A signature tells the two apart.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trn_validate.errors import EvidenceError
from trn_validate.evidence import evidence
from trn_validate.paths import file_digest
from trn_validate.review import attestation, manifest
from trn_validate.review.archive import opened
from trn_validate.review.constancy import constant
from trn_validate.review.documents import attested, rendered
from trn_validate.review.recorded import Recorded, read_recorded
from trn_validate.review.rejudge import rejudge
from trn_validate.review.summary import decision
from trn_validate.stage import StagesOf

CONSISTENT, ALTERED = 0, 5
NOT_AUTHORSHIP = (
    "This shows that the bundle is consistent, not who made it; docs/review-bundle.md says how a "
    "signature does."
)


@dataclass(kw_only=True)
class Found:
    """What verifying came to."""

    run: str = ""
    decision: str = ""
    evidence: bool = False
    checks: int = 0
    """Checks that were computed again."""
    files: int = 0
    """Files whose digest was computed again."""
    differences: list[str] = field(default_factory=list)
    """Each with the place where it is."""
    not_recomputed: list[str] = field(default_factory=list)
    """What rests on something that is not in the bundle."""

    @property
    def status(self) -> int:
        """Exit status."""
        return ALTERED if self.differences else CONSISTENT


def verify(bundle: Path, stages_of: StagesOf) -> Found:
    """Verify a folder or an archive.

    Raises:
        EvidenceError: it is no bundle, or an archive that is damaged or leads out of itself.
    """
    with opened(bundle) as folder:
        return verify_folder(folder, stages_of)


def verify_folder(folder: Path, stages_of: StagesOf) -> Found:
    """Verify a run folder.

    Raises:
        EvidenceError: it holds no run.
    """
    recorded = read_recorded(folder, stages_of)
    found = Found(run=recorded.name)
    found.differences += recorded.problems
    found.differences += constant(recorded)
    with tempfile.TemporaryDirectory(prefix="trn-validate-", dir=_memory()) as scratch:
        rejudged = rejudge(recorded, Path(scratch))
    found.checks = rejudged.checks
    found.differences += rejudged.differences
    found.not_recomputed += rejudged.not_recomputed
    digests = {name: file_digest(folder / name) for name in manifest.listed_files(folder)}
    found.files = len(digests)
    found.differences += _artifacts(recorded, digests)
    listed = _listed(folder, digests, found)
    _documents(recorded, listed, found, stages_of)
    found.decision = decision(recorded.standings)
    found.evidence, _ = evidence(recorded.verdicts)
    return found


def _memory() -> str | None:
    """Where a folder of links costs nothing."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _artifacts(recorded: Recorded, digests: Mapping[str, str]) -> Iterator[str]:
    """Every file that a verdict names is there as it is named, unless it holds tensors."""
    for verdict in recorded.verdicts.values():
        for artifact in verdict.artifacts:
            digest = digests.get(artifact.path)
            if digest is None:
                if not manifest.may_be_left_out(artifact.path):
                    yield f"{verdict.stage}: artifact {artifact.path} is missing"
                continue
            size = (recorded.folder / artifact.path).stat().st_size
            if (digest, size) != (artifact.sha256, artifact.bytes):
                yield f"{verdict.stage}: artifact {artifact.path} is not what the verdict says"


def _listed(folder: Path, digests: Mapping[str, str], found: Found) -> Mapping[str, str]:
    """The manifest, after every file was held against it."""
    try:
        text = (folder / manifest.NAME).read_text(encoding="utf-8")
        listed = manifest.parse(text)
    except OSError:
        found.differences.append(f"{manifest.NAME}: it is missing")
        return {}
    except (EvidenceError, UnicodeDecodeError) as error:
        found.differences.append(str(error))
        return {}
    for name, digest in listed.items():
        if name in digests:
            if digests[name] != digest:
                found.differences.append(f"{name}: its sha256 is not that of the manifest")
        elif manifest.may_be_left_out(name):
            kept = "the norms taken of it are" if "/captures/" in name else "its digest is"
            found.not_recomputed.append(f"{name}: left out; {kept} kept")
        else:
            found.differences.append(f"{name}: it is in the manifest and not in the bundle")
    found.differences += [
        f"{name}: it is in the bundle and not in the manifest"
        for name in sorted({*digests} - {*listed})
    ]
    if text != manifest.text_of(listed):
        found.differences.append(f"{manifest.NAME}: its lines are not in their order")
    return listed


def _documents(
    recorded: Recorded, listed: Mapping[str, str], found: Found, stages_of: StagesOf
) -> None:
    """Make every document again."""
    folder, standings = recorded.folder, recorded.standings
    made = rendered(folder, recorded.name, recorded.plan, standings, stages_of)
    made[attestation.NAME] = attested(folder, manifest.text_of(listed), standings)
    for name, data in made.items():
        try:
            if (folder / name).read_bytes() != data:
                found.differences.append(f"{name}: not what the verdicts give")
        except OSError:
            found.differences.append(f"{name}: it is missing")
    left_out = folder / manifest.LEFT_OUT
    if left_out.exists():
        gone = {name: d for name, d in listed.items() if not (folder / name).exists()}
        if left_out.read_bytes() != manifest.text_of(gone).encode():
            found.differences.append(f"{manifest.LEFT_OUT}: not what is left out")


def show_verification(bundle: Path, stages_of: StagesOf, *, as_json: bool = False) -> int:
    """Verify a bundle and print what was found; gives the exit status."""
    found = verify(bundle, stages_of)
    if as_json:
        shown = {**vars(found), "consistent": not found.differences, "shows": NOT_AUTHORSHIP}
        print(json.dumps(shown, indent=2))
        return found.status
    for line in _lines(found):
        print(line)
    return found.status


def _lines(found: Found) -> Iterator[str]:
    for difference in found.differences:
        yield f"DIFFERS  {difference}"
    if found.not_recomputed:
        yield f"not recomputed: {len(found.not_recomputed)}"
        yield from (f"  {what}" for what in found.not_recomputed)
    yield f"{found.checks} checks and the digests of {found.files} files were computed again"
    yield found.decision
    if found.differences:
        yield f"ALTERED: {len(found.differences)} differences in {found.run}"
    else:
        yield f"CONSISTENT: {found.run}. {NOT_AUTHORSHIP}"
