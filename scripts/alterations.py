"""Ways to alter a bundle, and to make every digest fit afterwards."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
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

Alteration = Callable[["Bundle", random.Random], str]
"""Alters a bundle and says what it did; empty where this draw can alter nothing."""


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
        data = attested(text, file_digest(folder / "plan.yaml"), recorded.standings)
        (folder / manifest.ATTESTATION).write_bytes(data)


def _verdict(bundle: Bundle, rng: random.Random) -> tuple[str, dict[str, Any]]:
    name = f"{rng.choice(bundle.stages)}.json"
    return name, bundle.read(name)


def _other_value(value: Any, rng: random.Random) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-2, -1, 1, 2, 7))
    if isinstance(value, float):
        return value * rng.choice((0.1, 0.5, 0.999, 1.001, 2.0)) or 1e-9
    return f"{value}x" if isinstance(value, str) else value


def _measured(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    check = rng.choice(stated["checks"])
    check["measured"] = _other_value(check["measured"], rng)
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def _limit(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    check = rng.choice(stated["checks"])
    if check["basis"] is not None:
        check["basis"]["floor"] = check["limit"] = check["limit"] * 10
    else:
        check["limit"] = _other_value(check["limit"], rng)
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def _outcome(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    how = rng.choice(("outcome", "unsupported", "unmeasured", "blocked_by", "problem"))
    values = {
        "outcome": "failed",
        "unsupported": "it is said to be absent",
        "unmeasured": True,
        "blocked_by": bundle.stages[0],
        "problem": {"cause": "crash", "what": "said", "rank": 0, "step": 1},
    }
    stated[how] = values[how]
    bundle.write(name, stated)
    return f"{name} {how}"


def _detail(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    check = rng.choice(stated["checks"])
    check[rng.choice(("detail", "unit"))] += " "
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def _times(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    which = rng.choice(("seconds", "started_at"))
    if which == "seconds":
        stated["seconds"] *= rng.choice((0.9, 1.1, 50.0))
    else:
        stated["started_at"] = f"20{rng.randrange(10, 50)}{stated['started_at'][4:]}"
    bundle.write(name, stated)
    return f"{name} {which}"


def _launch_seconds(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    stated["launch_seconds"] += 0.25
    bundle.write(name, stated)
    return name


def _drop_check(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    check = stated["checks"].pop(rng.randrange(len(stated["checks"])))
    stated["expects"] = [one for one in stated["expects"] if one != check["name"]]
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def _drop_stage(bundle: Bundle, rng: random.Random) -> str:
    stage = rng.choice(bundle.stages)
    (bundle.folder / f"{stage}.json").unlink()
    shutil.rmtree(bundle.folder / stage, ignore_errors=True)
    return stage


def _rename_stage(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    stated["stage"] = f"{stated['stage']}_x"
    (bundle.folder / name).unlink()
    bundle.write(f"{stated['stage']}.json", stated)
    return name


_RANK = "/records/rank-"


def _rank_file(bundle: Bundle, rng: random.Random) -> Path:
    names = [name for name in bundle.names(".jsonl") if _RANK in name]
    return bundle.folder / rng.choice(names)


def _record_line(bundle: Bundle, rng: random.Random) -> str:
    path = _rank_file(bundle, rng)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    gone = lines.pop(rng.randrange(len(lines)))
    path.write_text("".join(lines), encoding="utf-8")
    # What the two last phases of an operation leave between them is judged by the last alone.
    passing = '"begun"' in gone or '"issued"' in gone
    return "" if passing else f"{path.relative_to(bundle.folder)} {gone[:40]}"


def _rank(bundle: Bundle, rng: random.Random) -> str:
    path = _rank_file(bundle, rng)
    path.unlink()
    return str(path.relative_to(bundle.folder))


_JUDGED = {
    "step": ("loss", "grad_norm", "tokens", "rows"),
    "header": ("parameter_device", "comm_backend", "local_batch_size", "pid"),
    "closing": ("steps",),
    "mark": ("phase",),
}
"""Fields of records that a check, or what a verdict shows, comes from."""


def _record(bundle: Bundle, rng: random.Random) -> str:
    path = _rank_file(bundle, rng)
    lines = path.read_text(encoding="utf-8").splitlines()
    place = rng.randrange(len(lines))
    line = json.loads(lines[place])
    fields = _JUDGED.get(line["kind"], ())
    if not fields or (line["kind"] == "step" and not line["loss_here"]):
        return ""
    if "/seed/" in str(path) or line.get("phase") in ("begun", "issued"):
        return ""
    which = rng.choice(fields)
    if which == "rows":
        line["rows"] = f"{int(line['rows'], 16) ^ 1:032x}"
    elif which in ("loss", "grad_norm"):
        line[which] += 0.01
    else:
        line[which] = "wrong" if which == "phase" else _other_value(line[which], rng)
    lines[place] = json.dumps(line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{path.relative_to(bundle.folder)}:{place + 1} {which}"


def _distance(bundle: Bundle, rng: random.Random) -> str:
    name = rng.choice(bundle.names("distances.json"))
    kept = bundle.read(name)
    tensor = rng.choice(rng.choice(kept["comparisons"])["tensors"])
    which = rng.choice(("difference", "rest", "reference"))
    if not isinstance(tensor[which], float) or not tensor["difference"]:
        return ""
    tensor[which] *= rng.choice((0.5, 0.9, 1.1, 3.0))
    bundle.write(name, kept)
    return f"{name} {tensor['name']} {which}"


def _all_distances(bundle: Bundle, rng: random.Random) -> str:
    """The norms of a comparison scaled together: they fit each other, and the check no more."""
    name = rng.choice(bundle.names("distances.json"))
    kept = bundle.read(name)
    scale, changed = rng.choice((0.5, 2.0)), False
    for tensor in rng.choice(kept["comparisons"])["tensors"]:
        if isinstance(tensor["difference"], float) and tensor["difference"]:
            tensor["difference"] *= scale
            tensor["rest"] *= scale
            tensor["factor"] = 1 + (tensor["factor"] - 1) * scale
            changed = True
    bundle.write(name, kept)
    return name if changed else ""


def _swap(bundle: Bundle, rng: random.Random) -> str:
    """A file of another bundle, or of another stage, in the place of this one's."""
    here = [n for n in bundle.names(".json", ".jsonl") if _RANK in n or "/" not in n]
    one = rng.choice(here)
    if bundle.other is not None:
        source = bundle.other / one
        if not source.is_file():
            return ""
        (bundle.folder / one).write_bytes(source.read_bytes())
        return f"{one} of another bundle"
    two = rng.choice(here)
    (bundle.folder / one).write_bytes(bundle.whole[two])
    (bundle.folder / two).write_bytes(bundle.whole[one])
    return f"{one} and {two}"


def _plan(bundle: Bundle, rng: random.Random) -> str:
    path = bundle.folder / "plan.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    places = [n for n, line in enumerate(lines) if line.strip().startswith(("floor:", "factor:"))]
    place = rng.choice(places)
    key, _, value = lines[place].partition(": ")
    lines[place] = f"{key}: {float(value) * 2}"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lines[place].strip()


def _shown(bundle: Bundle, rng: random.Random) -> str:
    """Something that a verdict shows and no check judges."""
    name, stated = _verdict(bundle, rng)
    what = rng.choice(("measures", "facts", "versions"))
    if not stated[what]:
        return ""
    key = rng.choice(sorted(stated[what]))
    stated[what][key] = _other_value(stated[what][key], rng)
    bundle.write(name, stated)
    return f"{name} {what} {key}"


def _series(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    if not stated["series"]:
        return ""
    values = stated["series"][rng.choice(sorted(stated["series"]))]
    values[rng.randrange(len(values))] += 0.5
    bundle.write(name, stated)
    return name


def _layout(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    if stated["layout"] is None:
        return ""
    key = rng.choice(("processes", "tokens_per_step", "model", "attention", "seq_len"))
    stated["layout"][key] = _other_value(stated["layout"][key], rng)
    bundle.write(name, stated)
    return f"{name} {key}"


def _compared(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    if not stated["compared"]:
        return ""
    side = rng.choice(stated["compared"])[rng.choice(("reference", "candidate"))]
    key = rng.choice(("name", "attempt", "layout"))
    side[key] += "x"
    bundle.write(name, stated)
    return f"{name} {key}"


def _command(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    if not stated["commands"]:
        return ""
    command = rng.choice(stated["commands"])
    key = rng.choice(("exit_status", "seconds", "cause", "name"))
    command[key] = _other_value(command[key], rng)
    bundle.write(name, stated)
    return f"{name} {key}"


def _host(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    key = rng.choice(("root", "target", "reason", "trn2_functions"))
    stated["host"][key] = _other_value(stated["host"][key], rng)
    bundle.write(name, stated)
    return f"{name} {key}"


def _rerun(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    stated["rerun"] = stated["rerun"].replace("--only", "--from")
    bundle.write(name, stated)
    return name


def _inputs(bundle: Bundle, rng: random.Random) -> str:
    name, stated = _verdict(bundle, rng)
    key = rng.choice(("plan", "code", "environment"))
    stated["inputs"][key] = text_digest(stated["inputs"][key])
    bundle.write(name, stated)
    return f"{name} {key}"


def _environment(bundle: Bundle, rng: random.Random) -> str:
    found = bundle.read("environment.json")
    key: str = rng.choice(sorted(found))
    found[key] += "x"
    bundle.write("environment.json", found)
    return key


def _observed(bundle: Bundle, rng: random.Random) -> str:
    name = rng.choice(bundle.names("observed.json"))
    kept = bundle.read(name)
    if kept["launches"] and rng.random() < 0.5:
        ended = rng.choice(kept["launches"])
        ended["seconds"] += 1.0
        bundle.write(name, kept)
        return f"{name} {ended['name']}"
    if "host" not in kept["seen"]:
        return ""
    host = kept["seen"]["host"]
    key = rng.choice(("cores", "memory_gib", "disk_gib", "open_files"))
    host[key] = _other_value(host[key], rng)
    bundle.write(name, kept)
    return f"{name} {key}"


def _spec(bundle: Bundle, rng: random.Random) -> str:
    name = rng.choice([n for n in bundle.names("spec.json") if "/ranks-" not in n])
    told = bundle.read(name)
    key = rng.choice([key for key in ("seed", "steps", "seq_len", "device") if key in told])
    told[key] = _other_value(told[key], rng)
    bundle.write(name, told)
    return f"{name} {key}"


def _document(bundle: Bundle, rng: random.Random) -> str:
    """A document, the manifest or the attestation."""
    name = rng.choice([n for n in bundle.whole if "/" not in n and not n.endswith(".json")])
    data = bytearray(bundle.whole[name])
    data[rng.randrange(len(data))] ^= 1
    (bundle.folder / name).write_bytes(bytes(data))
    return name


def _any_byte(bundle: Bundle, rng: random.Random) -> str:
    """One bit of any file."""
    name = rng.choice(sorted(bundle.whole))
    data = bytearray(bundle.whole[name])
    if not data:
        return ""
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    (bundle.folder / name).write_bytes(bytes(data))
    return name


def _extra(bundle: Bundle, rng: random.Random) -> str:
    name = f"{rng.choice(bundle.stages)}/{rng.randrange(9)}.txt"
    (bundle.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (bundle.folder / name).write_text("more\n", encoding="utf-8")
    return name


def _log(bundle: Bundle, rng: random.Random) -> str:
    """A log says something else; no number and no pass comes from one."""
    name = rng.choice(bundle.names(".log"))
    (bundle.folder / name).write_text("all is well, really\n", encoding="utf-8")
    return name


KINDS: dict[str, Alteration] = {
    "measured": _measured,
    "limit": _limit,
    "outcome": _outcome,
    "detail": _detail,
    "times": _times,
    "launch seconds": _launch_seconds,
    "check dropped": _drop_check,
    "stage dropped": _drop_stage,
    "stage renamed": _rename_stage,
    "record line dropped": _record_line,
    "rank dropped": _rank,
    "record": _record,
    "distance": _distance,
    "all distances": _all_distances,
    "files swapped": _swap,
    "plan": _plan,
    "measures, facts, versions": _shown,
    "series": _series,
    "layout": _layout,
    "compared": _compared,
    "command": _command,
    "host": _host,
    "rerun": _rerun,
    "inputs": _inputs,
    "environment": _environment,
    "observed": _observed,
    "spec": _spec,
    "document": _document,
    "any bit": _any_byte,
    "file added": _extra,
    "log": _log,
}
"""By name, as docs/review-bundle.md has them."""

SIGNATURE = frozenset({"times", "log", "distance", "all distances"})
"""Kinds of which some, made consistent, are told by a signature alone."""

PLAIN_ALONE = frozenset({"document", "any bit", "file added"})
"""Made consistent, these are undone, or are what other kinds do."""

CONSISTENT_ALONE: frozenset[str] = frozenset()
