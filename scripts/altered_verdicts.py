"""Ways to alter what a verdict says."""

from __future__ import annotations

import random
import shutil
from typing import Any

from scripts.altered_bundle import Bundle, other_value
from trn_validate.paths import text_digest


def _verdict(bundle: Bundle, rng: random.Random) -> tuple[str, dict[str, Any]]:
    name = f"{rng.choice(bundle.stages)}.json"
    return name, bundle.read(name)


def measured(bundle: Bundle, rng: random.Random) -> str:
    """Another measured value."""
    name, stated = _verdict(bundle, rng)
    check = rng.choice(stated["checks"])
    check["measured"] = other_value(check["measured"], rng)
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def limit(bundle: Bundle, rng: random.Random) -> str:
    """A limit that is raised, with the basis that it follows from."""
    name, stated = _verdict(bundle, rng)
    check = rng.choice(stated["checks"])
    if check["basis"] is not None:
        check["basis"]["floor"] = check["limit"] = check["limit"] * 10
    else:
        check["limit"] = other_value(check["limit"], rng)
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def outcome(bundle: Bundle, rng: random.Random) -> str:
    """Fields that decide the outcome."""
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


def detail(bundle: Bundle, rng: random.Random) -> str:
    """Another detail or unit of a check."""
    name, stated = _verdict(bundle, rng)
    check = rng.choice(stated["checks"])
    check[rng.choice(("detail", "unit"))] += " "
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def times(bundle: Bundle, rng: random.Random) -> str:
    """Another start or another duration."""
    name, stated = _verdict(bundle, rng)
    which = rng.choice(("seconds", "started_at"))
    if which == "seconds":
        stated["seconds"] *= rng.choice((0.9, 1.1, 50.0))
    else:
        stated["started_at"] = f"20{rng.randrange(10, 50)}{stated['started_at'][4:]}"
    bundle.write(name, stated)
    return f"{name} {which}"


def launch_seconds(bundle: Bundle, rng: random.Random) -> str:
    """Launches that took longer."""
    name, stated = _verdict(bundle, rng)
    stated["launch_seconds"] += 0.25
    bundle.write(name, stated)
    return name


def drop_check(bundle: Bundle, rng: random.Random) -> str:
    """A check that is neither owed nor made."""
    name, stated = _verdict(bundle, rng)
    check = stated["checks"].pop(rng.randrange(len(stated["checks"])))
    stated["expects"] = [one for one in stated["expects"] if one != check["name"]]
    bundle.write(name, stated)
    return f"{name} {check['name']}"


def drop_stage(bundle: Bundle, rng: random.Random) -> str:
    """A stage with all its files."""
    stage = rng.choice(bundle.stages)
    (bundle.folder / f"{stage}.json").unlink()
    shutil.rmtree(bundle.folder / stage, ignore_errors=True)
    return stage


def rename_stage(bundle: Bundle, rng: random.Random) -> str:
    """A stage of another name."""
    name, stated = _verdict(bundle, rng)
    stated["stage"] = f"{stated['stage']}_x"
    (bundle.folder / name).unlink()
    bundle.write(f"{stated['stage']}.json", stated)
    return name


def shown(bundle: Bundle, rng: random.Random) -> str:
    """Something that a verdict shows and no check judges."""
    name, stated = _verdict(bundle, rng)
    what = rng.choice(("measures", "facts", "versions"))
    if not stated[what]:
        return ""
    key = rng.choice(sorted(stated[what]))
    stated[what][key] = other_value(stated[what][key], rng)
    bundle.write(name, stated)
    return f"{name} {what} {key}"


def series(bundle: Bundle, rng: random.Random) -> str:
    """Another figure of one step."""
    name, stated = _verdict(bundle, rng)
    if not stated["series"]:
        return ""
    values = stated["series"][rng.choice(sorted(stated["series"]))]
    values[rng.randrange(len(values))] += 0.5
    bundle.write(name, stated)
    return name


def layout(bundle: Bundle, rng: random.Random) -> str:
    """Another layout than the one that ran."""
    name, stated = _verdict(bundle, rng)
    if stated["layout"] is None:
        return ""
    key = rng.choice(("processes", "tokens_per_step", "model", "attention", "seq_len"))
    stated["layout"][key] = other_value(stated["layout"][key], rng)
    bundle.write(name, stated)
    return f"{name} {key}"


def compared(bundle: Bundle, rng: random.Random) -> str:
    """Another side of a comparison."""
    name, stated = _verdict(bundle, rng)
    if not stated["compared"]:
        return ""
    side = rng.choice(stated["compared"])[rng.choice(("reference", "candidate"))]
    key = rng.choice(("name", "attempt", "layout"))
    side[key] += "x"
    bundle.write(name, stated)
    return f"{name} {key}"


def command(bundle: Bundle, rng: random.Random) -> str:
    """Another end of a launch."""
    name, stated = _verdict(bundle, rng)
    if not stated["commands"]:
        return ""
    command = rng.choice(stated["commands"])
    key = rng.choice(("exit_status", "seconds", "cause", "name"))
    command[key] = other_value(command[key], rng)
    bundle.write(name, stated)
    return f"{name} {key}"


def host(bundle: Bundle, rng: random.Random) -> str:
    """Another host or target."""
    name, stated = _verdict(bundle, rng)
    key = rng.choice(("root", "target", "reason", "trn2_functions"))
    stated["host"][key] = other_value(stated["host"][key], rng)
    bundle.write(name, stated)
    return f"{name} {key}"


def rerun(bundle: Bundle, rng: random.Random) -> str:
    """Another rerun command."""
    name, stated = _verdict(bundle, rng)
    stated["rerun"] = stated["rerun"].replace("--only", "--from")
    bundle.write(name, stated)
    return name


def inputs(bundle: Bundle, rng: random.Random) -> str:
    """Another digest of a part of the inputs."""
    name, stated = _verdict(bundle, rng)
    key = rng.choice(("plan", "code", "environment"))
    stated["inputs"][key] = text_digest(stated["inputs"][key])
    bundle.write(name, stated)
    return f"{name} {key}"
