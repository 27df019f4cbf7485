"""A bundle that is altered and put back, and how every digest is made to fit afterwards."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

from stages import stages_of
from trn_validate.errors import TrnValidateError
from trn_validate.freshness import inputs_digest
from trn_validate.paths import file_digest, files_below, text_digest
from trn_validate.review import manifest
from trn_validate.review.documents import attested, rendered
from trn_validate.review.recorded import read_recorded
from trn_validate.verdict import Verdict


class Bundle:
    """An unpacked bundle that is altered and put back."""

    def __init__(self, folder: Path, other: Path | None = None) -> None:
        self.folder = folder
        self.other = other
        self.whole = {str(p.relative_to(folder)): p.read_bytes() for p in files_below(folder)}
        self.stages = [s.id for s in read_recorded(folder, stages_of).stages]

    def names(self, *endings: str) -> list[str]:
        """Files with one of these endings, in order."""
        return sorted(name for name in self.whole if name.endswith(endings))

    def differs(self) -> bool:
        """Whether any file is another than in the whole bundle."""
        return self._now() != self.whole

    def restore(self) -> None:
        """Put everything back."""
        now = self._now()
        for name in now.keys() - self.whole.keys():
            (self.folder / name).unlink()
        for name, data in self.whole.items():
            if now.get(name) != data:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_bytes(data)

    def _now(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in files_below(self.folder)}

    def read(self, name: str) -> Any:
        """A file of JSON."""
        return json.loads((self.folder / name).read_bytes())

    def write(self, name: str, value: Any) -> None:
        """Write a file of JSON, a verdict as verdicts are written."""
        (self.folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    def make_consistent(self) -> None:
        """Let every digest fit what is there now, and every document say it."""
        digests: dict[str, str] = {}
        for stage in self.stages:
            path = self.folder / f"{stage}.json"
            if not path.is_file():
                continue
            # What is no verdict any more has no digests to fit.
            with contextlib.suppress(ValueError, KeyError, TypeError, TrnValidateError):
                path.write_text(self._fitting(json.loads(path.read_bytes()), digests))
            digests[stage] = text_digest(path.read_text(encoding="utf-8"))
        self._documents()

    def _fitting(self, stated: dict[str, Any], earlier: dict[str, str]) -> str:
        for artifact in stated["artifacts"]:
            path = self.folder / artifact["path"]
            if path.is_file():
                artifact["sha256"], artifact["bytes"] = file_digest(path), path.stat().st_size
        stated["artifacts"] = [
            artifact
            for artifact in stated["artifacts"]
            if (self.folder / artifact["path"]).is_file()
            or manifest.may_be_left_out(artifact["path"])
        ]
        stated["builds_on"] = {name: d for name, d in earlier.items() if name != stated["stage"]}
        stated["inputs_sha256"] = inputs_digest(stated["inputs"], stated["builds_on"])
        stated.pop("outcome", None)
        for check in stated["checks"]:
            check.pop("passed", None)
        return Verdict.model_validate_json(json.dumps(stated)).to_json()

    def _documents(self) -> None:
        """Documents, manifest and attestation of what is there now."""
        folder = self.folder
        listed = manifest.parse((folder / manifest.NAME).read_text(encoding="utf-8"))
        gone = {n: d for n, d in listed.items() if manifest.may_be_left_out(n)}
        try:
            recorded = read_recorded(folder, stages_of)
            made = rendered(folder, recorded.name, recorded.plan, recorded.standings, stages_of)
        except TrnValidateError:
            return
        for name, data in made.items():
            (folder / name).write_bytes(data)
        there = {name: file_digest(folder / name) for name in manifest.listed_files(folder)}
        text = manifest.text_of(gone | there)
        (folder / manifest.NAME).write_text(text, encoding="utf-8")
        data = attested(folder, text, recorded.standings)
        (folder / manifest.ATTESTATION).write_bytes(data)


def other_value(value: Any, rng: random.Random) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-2, -1, 1, 2, 7))
    if isinstance(value, float):
        return value * rng.choice((0.1, 0.5, 0.999, 1.001, 2.0)) or 1e-9
    return f"{value}x" if isinstance(value, str) else value
