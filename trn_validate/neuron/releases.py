"""Releases of the vendor's stack, and to which of them an installation belongs.

The rows are in ``data/releases.yaml``, each with its source. A version that no row knows is a
warning and never a failure: the rows are older than the next release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from trn_validate.base import Record
from trn_validate.neuron.finding import Finding, found
from trn_validate.yaml_file import read

ROWS = Path(__file__).parent / "data" / "releases.yaml"
DRIVER, RUNTIME, COMPILER = "aws-neuronx-dkms", "aws-neuronx-runtime-lib", "neuronx-cc"


class Release(Record):
    """What belongs together."""

    sdk: str
    versions: dict[str, tuple[str, ...]]
    """By component; an installed version matches where it begins with one of them."""
    python: tuple[str, ...] = ()
    """Empty where the row does not say."""
    os: tuple[str, ...] = ()
    sources: tuple[str, ...]

    def has(self, component: str, version: str) -> bool | None:
        """Whether a version is of this release; None where the row does not name the component."""
        known = self.versions.get(component)
        return None if known is None else any(_begins(version, start) for start in known)


class Contradiction(Record):
    """Official documents that do not agree about one release."""

    sdk: str
    about: Literal["os", "python"]
    values: tuple[str, ...]
    said: tuple[str, ...]


class Releases(Record):
    """The whole file, the newest release first."""

    releases: tuple[Release, ...]
    contradictions: tuple[Contradiction, ...]

    def of(self, component: str, version: str) -> Release | None:
        """The release that a version of a component is from."""
        return next((r for r in self.releases if r.has(component, version)), None)


class Match(Record):
    """The release that an installation is nearest to."""

    sdk: str
    agreeing: tuple[str, ...]
    deviations: tuple[str, ...]
    """One sentence for each component that is of another release."""


@cache
def load() -> Releases:
    """Read the rows."""
    return Releases.model_validate_json(json.dumps(read(ROWS)))


def match(installed: Mapping[str, str], known: Releases) -> Match | None:
    """The release with the most components of ``installed``, the newest of equals."""
    agreeing = {
        release.sdk: tuple(
            name for name, version in installed.items() if release.has(name, version)
        )
        for release in known.releases
    }
    # max keeps the first of equals, and the newest comes first.
    best = max(known.releases, key=lambda release: len(agreeing[release.sdk]))
    if not agreeing[best.sdk]:
        return None
    apart = tuple(
        f"{name} {version} ({_origin(name, version, known)}), "
        f"not {' or '.join(best.versions[name])}"
        for name, version in installed.items()
        if best.has(name, version) is False
    )
    return Match(sdk=best.sdk, agreeing=agreeing[best.sdk], deviations=apart)


def judge_release(
    installed: Mapping[str, str], python: str, system: str, known: Releases
) -> tuple[Match | None, tuple[Finding, ...]]:
    """Say what deviates from the nearest release.

    ``installed`` holds versions by component, ``python`` is like 3.12, ``system`` like
    ubuntu 24.04.
    """
    matched = match(installed, known)
    if matched is None:
        listed = ", ".join(f"{name} {version}" for name, version in installed.items())
        what = f"no known release has any of: {listed or 'nothing is installed'}"
        return None, (found("release_unknown", what, "the installed versions"),)
    release = next(r for r in known.releases if r.sdk == matched.sdk)
    told = [_compiler(installed, known)]
    if matched.deviations:
        what = f"nearest to release {matched.sdk}, but {'; '.join(matched.deviations)}"
        told.append(found("release_mixed", what, "the installed versions"))
    told.append(_supported("python", python, release.python, matched.sdk, known))
    told.append(_supported("os", system, release.os, matched.sdk, known))
    return matched, tuple(filter(None, told))


def _compiler(installed: Mapping[str, str], known: Releases) -> Finding | None:
    """A compiler of a later release than the runtime's makes files that this cannot load."""
    compiler, runtime = (known.of(name, installed.get(name, "")) for name in (COMPILER, RUNTIME))
    order = known.releases
    if not (compiler and runtime) or order.index(compiler) >= order.index(runtime):
        return None
    what = f"{COMPILER} {installed[COMPILER]} is newer than {RUNTIME} {installed[RUNTIME]}"
    return found("compiler_newer_than_runtime", what, "the installed versions")


def _supported(
    about: Literal["os", "python"], value: str, allowed: tuple[str, ...], sdk: str, known: Releases
) -> Finding | None:
    apart = (c for c in known.contradictions if (c.sdk, c.about) == (sdk, about))
    for contradiction in apart:
        if value in contradiction.values:
            what = f"{value}: {' against '.join(contradiction.said)}"
            return found("documents_contradict", what, f"documents of release {sdk}")
    if not allowed or value in allowed:
        return None
    what = f"{value or 'unknown'}, and release {sdk} names {', '.join(allowed)}"
    return found(f"{about}_unsupported", what, about)


def _origin(name: str, version: str, known: Releases) -> str:
    release = known.of(name, version)
    return f"release {release.sdk}" if release else "of no known release"


def _begins(version: str, start: str) -> bool:
    """Whether the parts of ``start`` are the first parts of ``version``."""
    return version == start or version.startswith((f"{start}.", f"{start}-", f"{start}+"))
