"""What is made from a run's verdicts and records, and can be made again byte by byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trn_validate.config import Plan
from trn_validate.errors import TrnValidateError
from trn_validate.gate import Standing
from trn_validate.hashes import Hashes
from trn_validate.paths import file_digest, text_digest, write_atomic
from trn_validate.review import attestation, ctrf, junit, manifest, report
from trn_validate.run import PLAN, Run
from trn_validate.stage import StagesOf
from trn_validate.vendor_record import newest_record


def rendered(
    folder: Path, run: str, plan: Plan, standings: Sequence[Standing], stages_of: StagesOf
) -> dict[str, bytes]:
    """Every document by name: the report, the page, and the two forms that CI systems read."""
    texts = {
        report.NAME: report.render(run, plan, standings, newest_record(folder)),
        ctrf.NAME: ctrf.render(run, standings),
        junit.NAME: junit.render(run, standings),
        **_page(folder, stages_of),
    }
    return {name: text.encode("utf-8") for name, text in texts.items()}


def _page(folder: Path, stages_of: StagesOf) -> dict[str, str]:
    """The page, of a folder that can be read."""
    # Its templates take time to load, and nothing that only looks at a run renders it.
    from trn_validate.review import page
    from trn_validate.review.material import load

    try:
        return {page.NAME: page.page(load(folder, stages_of))}
    except TrnValidateError:
        # What is wrong with the folder is told by whoever reads its verdicts.
        return {}


def attested(folder: Path, manifest_text: str, standings: Sequence[Standing]) -> bytes:
    """The attestation of the manifest of a run folder."""
    plan_sha256 = file_digest(folder / PLAN)
    text = attestation.render(text_digest(manifest_text), plan_sha256, standings)
    return text.encode("utf-8")


def write_documents(
    run: Run, plan: Plan, standings: Sequence[Standing], stages_of: StagesOf
) -> Path:
    """Write every document into the run folder, then the manifest, then the attestation.

    Gives the path of the report that is for people and pull requests.

    Raises:
        FolderError: one could not be written.
        MeasurementError: a file changes while it is read.
    """
    for name, data in rendered(run.folder, run.name, plan, standings, stages_of).items():
        write_atomic(run.folder / name, data)
    digests = digests_of(run.folder, run.private / "hashes.json")
    seal(run.folder, digests, standings)
    return run.folder / report.NAME


def seal(folder: Path, digests: Mapping[str, str], standings: Sequence[Standing]) -> None:
    """Write the manifest of these digests, and its attestation.

    Raises:
        FolderError: one could not be written.
    """
    text = manifest.text_of(digests)
    write_atomic(folder / manifest.NAME, text.encode("utf-8"))
    write_atomic(folder / attestation.NAME, attested(folder, text, standings))


def digests_of(folder: Path, memory: Path) -> Mapping[str, str]:
    """Digest of every file that a manifest lists; one whose size and time are known is not read.

    Raises:
        MeasurementError: a file changes while it is read.
    """
    return Hashes(folder, memory).recall(manifest.listed_files(folder))
