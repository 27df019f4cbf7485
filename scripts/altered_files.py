"""Ways to alter the other files of a bundle."""

from __future__ import annotations

import random

from scripts.altered_bundle import Bundle, other_value


def plan(bundle: Bundle, rng: random.Random) -> str:
    """Another floor or factor in the plan."""
    path = bundle.folder / "plan.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    places = [n for n, line in enumerate(lines) if line.strip().startswith(("floor:", "factor:"))]
    place = rng.choice(places)
    key, _, value = lines[place].partition(": ")
    lines[place] = f"{key}: {2.0 if value == 'null' else float(value) * 2}"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"plan.yaml {lines[place].strip()}"


def environment(bundle: Bundle, rng: random.Random) -> str:
    """Another version in the fingerprint."""
    found: dict[str, str] = bundle.read("environment.json")
    key = rng.choice(sorted(found))
    found[key] += "x"
    bundle.write("environment.json", found)
    return key


def observed(bundle: Bundle, rng: random.Random) -> str:
    """Another end of a launch, or another thing that was seen of the host."""
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
    host[key] = other_value(host[key], rng)
    bundle.write(name, kept)
    return f"{name} {key}"


def spec(bundle: Bundle, rng: random.Random) -> str:
    """Other orders than the ranks were given."""
    name = rng.choice([n for n in bundle.names("spec.json") if "/ranks-" not in n])
    told = bundle.read(name)
    key = rng.choice([key for key in ("seed", "steps", "seq_len", "device") if key in told])
    told[key] = other_value(told[key], rng)
    bundle.write(name, told)
    return f"{name} {key}"


def document(bundle: Bundle, rng: random.Random) -> str:
    """A document, the manifest or the attestation."""
    name = rng.choice([n for n in bundle.whole if "/" not in n and not n.endswith(".json")])
    data = bytearray(bundle.whole[name])
    data[rng.randrange(len(data))] ^= 1
    (bundle.folder / name).write_bytes(bytes(data))
    return name


def any_byte(bundle: Bundle, rng: random.Random) -> str:
    """One bit of any file."""
    name = rng.choice(sorted(bundle.whole))
    data = bytearray(bundle.whole[name])
    if not data:
        return ""
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    (bundle.folder / name).write_bytes(bytes(data))
    return name


def extra(bundle: Bundle, rng: random.Random) -> str:
    """A file that no verdict names."""
    name = f"{rng.choice(bundle.stages)}/{rng.randrange(9)}.txt"
    (bundle.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (bundle.folder / name).write_text("more\n", encoding="utf-8")
    return name


def log(bundle: Bundle, rng: random.Random) -> str:
    """A log says something else; no number and no pass comes from one."""
    name = rng.choice(bundle.names(".log"))
    (bundle.folder / name).write_text("all is well, really\n", encoding="utf-8")
    return name
