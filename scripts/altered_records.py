"""Ways to alter what the ranks recorded, and the norms that were taken of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

from scripts.altered_bundle import Bundle, other_value

_RANK = "/records/rank-"
_LITTLE_JUDGED = ("seed", "reload", "missing", "truncated")
"""Launches that are asked whether they start, what they load, or whether they refuse to."""


def _rank_file(bundle: Bundle, rng: random.Random, *, judged: bool) -> Path:
    names = [name for name in bundle.names(".jsonl") if _RANK in name]
    mine = [name for name in names if (name.split("/")[2] in _LITTLE_JUDGED) != judged]
    return bundle.folder / rng.choice(mine)


def record_line(bundle: Bundle, rng: random.Random) -> str:
    """A line of a rank is gone."""
    path = _rank_file(bundle, rng, judged=True)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    gone = lines.pop(rng.randrange(len(lines)))
    path.write_text("".join(lines), encoding="utf-8")
    # Of the phases of an operation the last is judged, and of what ranks count of communication
    # the largest, which another may have too.
    passing = any(f'"{word}"' in gone for word in ("begun", "issued", "communication"))
    return "" if passing else f"{path.relative_to(bundle.folder)} {gone[:40]}"


def rank(bundle: Bundle, rng: random.Random) -> str:
    """All that a rank recorded is gone."""
    path = _rank_file(bundle, rng, judged=True)
    path.unlink()
    return str(path.relative_to(bundle.folder))


_JUDGED = {
    "step": ("loss", "grad_norm", "tokens", "rows"),
    "header": ("parameter_device", "comm_backend", "degrees", "pid"),
    "closing": ("steps",),
    "mark": ("phase",),
}
"""Fields of records that a check, or what a verdict shows, comes from."""


def record(bundle: Bundle, rng: random.Random) -> str:
    """Another value in a field that something is computed from."""
    return _other_field(bundle, rng, _rank_file(bundle, rng, judged=True))


def record_little_judged(bundle: Bundle, rng: random.Random) -> str:
    """The same in a launch of which little is asked, such as that it refuses a damaged shard."""
    return _other_field(bundle, rng, _rank_file(bundle, rng, judged=False))


def _other_field(bundle: Bundle, rng: random.Random, path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    place = rng.randrange(len(lines))
    line = json.loads(lines[place])
    fields = _JUDGED.get(line["kind"], ())
    if not fields or (line["kind"] == "step" and not line["loss_here"]):
        return ""
    if line.get("phase") in ("begun", "issued"):
        return ""
    which = rng.choice(fields)
    if which == "rows":
        line["rows"] = f"{int(line['rows'], 16) ^ 1:032x}"
    elif which == "degrees":
        line["degrees"]["cp"] += 1
    elif which in ("loss", "grad_norm"):
        line[which] += 0.01
    else:
        line[which] = "wrong" if which == "phase" else other_value(line[which], rng)
    lines[place] = json.dumps(line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{path.relative_to(bundle.folder)}:{place + 1} {which}"


def distance(bundle: Bundle, rng: random.Random) -> str:
    """Another norm of one tensor."""
    name = rng.choice(bundle.names("distances.json"))
    kept = bundle.read(name)
    tensor = rng.choice(rng.choice(kept["comparisons"])["tensors"])
    which = rng.choice(("difference", "rest", "reference"))
    if not isinstance(tensor[which], float) or not tensor["difference"]:
        return ""
    tensor[which] *= rng.choice((0.5, 0.9, 1.1, 3.0))
    bundle.write(name, kept)
    return f"{name} {tensor['name']} {which}"


def all_distances(bundle: Bundle, rng: random.Random) -> str:
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


def swap(bundle: Bundle, rng: random.Random) -> str:
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
