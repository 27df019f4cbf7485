"""Do the packages import, at versions that are real, and what would torchtitan execute on?

Each package is imported in a process of its own. For a neuron plan torch is imported twice more,
with and without the backends that load by themselves, to tell which lineage executes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trn_validate.check import Check
from trn_validate.config import Plan
from trn_validate.launch import LaunchRequest, LaunchResult
from trn_validate.observed import JUDGED
from trn_validate.sources import module_sources
from trn_validate.stage import Context, Family, Findings, Place
from trn_validate.verdict import Problem

PLACEHOLDERS = ("1.0", "1.0.post1", "0.0.1")
"""Versions on the public index that only say WRONG PACKAGE (aws-neuron-sdk issue 916)."""

VENDOR = ("torch-neuronx", "neuronx-cc", "libneuronxla", "nki", "torchtitan-neuron")

_REQUIRED = {
    "torch": "torch",
    # torchtitan imports it and does not declare it; the CPU wheel of torch brings none.
    "triton": "triton",
    "torchtitan.trainer": "torchtitan",
    "spmd_types": "spmd_types",
    "safetensors": "safetensors",
}
_BEFORE_TORCH = ("torch", "torch_neuronx", "triton", "safetensors")
"""What has to import by itself."""
GENERATION = "torchtitan's configuration"
DRIVEN = ("samples", "tokens")
"""What the generations of torchtitan that can be driven count a batch in."""
_OLDER = "install torchtitan 0.3.0, or the generation after it"
_IMPORT = "import-"
DETECT = "detect"
LOADED, BARE = "lineage", "lineage-without-autoload"


@dataclass(frozen=True)
class _ImportsStage:
    id: str = "environment.imports"
    asks: str = "do the packages import, and what would torchtitan execute on?"

    def reads(self, plan: Plan) -> object:
        """Device, process group and the models' modules."""
        return {"profile": plan.profile.model_dump(), "modules": modules(plan)}

    def external(self, plan: Plan) -> dict[str, str]:
        """Sources of the models' modules."""
        return {module: module_sources(module) for module in modules(plan)}

    def launches(self, place: Place) -> tuple[LaunchRequest, ...]:
        """One process per package, and one that asks torchtitan."""
        plan, private = place.plan, place.private
        probes = [_probe(plan, private, *item) for item in required(plan).items()]
        if plan.profile.device == "neuron":
            asks = ("-m", "trn_validate.lineage_probe")
            probes.append(_plain(plan, private, LOADED, asks))
            probes.append(_plain(plan, private, BARE, asks, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))
        argv = ("-m", "trn_validate.workload.detect", plan.profile.device)
        return (*probes, _plain(plan, private, DETECT, argv))

    def run(self, context: Context) -> Findings:
        """Import each package and judge what came back."""
        plan = context.plan
        place = Place(plan=plan, private=context.attempt.private, seed=Path())
        requests = self.launches(place)
        findings = Findings(expects=_expects(plan))
        results = _launch(context, requests)
        for request in requests:
            if request.name.startswith(_IMPORT):
                _judge_import(findings, request)
        found = context.observer.see("vendor's packages", dict[str, str], _vendor_packages)
        findings.checks.append(_placeholders(found))
        if plan.profile.device == "neuron":
            _judge_neuron(context, findings, requests)
        answer = read(_file(requests[-1]))
        detected = results[-1]
        for name, key, expected in (
            ("torchtitan's device", "device", plan.profile.device),
            ("torchtitan's communication backend", "backend", plan.profile.process_group),
        ):
            findings.checks.append(
                Check(
                    name=name,
                    measured=str(answer.get(key, "none")),
                    comparator="==",
                    limit=expected,
                    source="config",
                    detail=detected.what,
                )
            )
        findings.checks.append(_generation(answer))
        if failed := next((check for check in findings.checks if not check.passed), None):
            findings.problem = Problem(cause="import", what=str(failed))
        return findings


def _launch(context: Context, requests: tuple[LaunchRequest, ...]) -> list[LaunchResult]:
    """Two at a time, since an import is bound by one core.

    One at a time on a neuron device: two that load its backend would fight over it.
    """
    width = 1 if context.plan.profile.device == "neuron" else 2
    results: list[LaunchResult] = []
    for first in range(0, len(requests), width):
        some = requests[first : first + width]
        context.say(f"importing {', '.join(request.name for request in some)}")
        ended = context.launcher.together(some)
        context.note(*ended)
        results += ended
    return results


def modules(plan: Plan) -> list[str]:
    """Modules of the plan's models, each once."""
    return sorted({ladder.model.module for ladder in plan.ladders})


def required(plan: Plan) -> dict[str, str]:
    """Modules that have to import, with the distribution that brings each."""
    models = {m: m.partition(".")[0].replace("_", "-") for m in modules(plan)}
    vendor = {"torch_neuronx": "torch-neuronx"} if plan.profile.device == "neuron" else {}
    return {**_REQUIRED, **vendor, **models}


def _expects(plan: Plan) -> tuple[str, ...]:
    imports = (f"import {module}" for module in required(plan))
    asked = ("torchtitan's device", "torchtitan's communication backend", GENERATION)
    return (*imports, "placeholders from the wrong index", *asked)


def _plain(
    plan: Plan, private: Path, name: str, argv: tuple[str, ...], **env: str
) -> LaunchRequest:
    folder = private / name
    return LaunchRequest(
        name=name,
        argv=(sys.executable, *argv, str(folder / "answer.json")),
        folder=folder,
        env=env,
        wall_seconds=plan.timeouts.wall,
        silence_seconds=plan.timeouts.wall,
        grace_seconds=plan.timeouts.grace,
    )


def _probe(plan: Plan, private: Path, module: str, distribution: str) -> LaunchRequest:
    # A rank imports torch first. A backend that loads with torch and imports Dynamo finds
    # spmd_types half imported where that one imports torch.
    first = () if module.partition(".")[0] in _BEFORE_TORCH else ("torch",)
    argv = ("-m", "trn_validate.import_probe", distribution, *first, module)
    return _plain(plan, private, f"{_IMPORT}{module}", argv)


def _file(request: LaunchRequest) -> Path:
    return Path(request.argv[-1])


def read(path: Path) -> dict[str, object]:
    """A probe's answer; empty where it left none that can be read."""
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _judge_import(findings: Findings, request: LaunchRequest) -> None:
    module = request.name.removeprefix(_IMPORT)
    answer = read(_file(request))
    version = str(answer.get("version", "absent"))
    origin = str(answer.get("origin", ""))
    findings.checks.append(
        Check(
            name=f"import {module}",
            measured=str(answer.get("result", "the process left no answer")),
            comparator="==",
            limit="imported",
            source="derived",
            detail=_advice(module) if answer.get("result") != "imported" else version,
        )
    )
    findings.versions[str(answer.get("distribution", module))] = version
    findings.facts[f"origin of {module}"] = origin
    if flavors := answer.get("flavors"):
        findings.facts[f"flavors of {module}"] = str(flavors)
    seconds = answer.get("seconds")
    if isinstance(seconds, float):
        findings.measures[f"import_seconds.{module}"] = seconds


def _judge_neuron(
    context: Context, findings: Findings, requests: tuple[LaunchRequest, ...]
) -> None:
    """Add what is known of a Neuron installation; only here is it loaded."""
    answers = {request.name: read(_file(request)) for request in requests}

    def look() -> Findings:
        from trn_validate.neuron.imports import judge_imports

        root = Path(context.choice.signs.host_root)
        return judge_imports(root, answers[LOADED], answers[BARE], os.environ)

    judged = context.observer.see(f"{JUDGED}: versions and lineage", Findings, look)
    findings.expects += judged.expects
    findings.checks += judged.checks
    findings.facts |= judged.facts
    findings.versions = judged.versions | findings.versions
    findings.execution = judged.execution


def _generation(answer: dict[str, object]) -> Check:
    """Whether torchtitan is configured in one of the ways that can be driven."""
    told = str(answer.get("generation", "none"))
    return Check(
        name=GENERATION,
        measured=told if told in DRIVEN else "not driven",
        comparator="!=",
        limit="not driven",
        source="derived",
        detail=f"configured by {told}" if told in DRIVEN else f"configured by {told}; {_OLDER}",
    )


def _advice(module: str) -> str:
    if module == "triton":
        return "torchtitan needs it and does not declare it: pip install triton"
    return "run make setup, and read the log of this launch"


def _vendor_packages() -> dict[str, str]:
    """Version of each of the vendor's packages that is installed."""
    found = {}
    for name in VENDOR:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _placeholders(packages: Mapping[str, str]) -> Check:
    found = [f"{name} {version}" for name, version in packages.items() if version in PLACEHOLDERS]
    return Check(
        name="placeholders from the wrong index",
        measured=len(found),
        comparator="==",
        limit=0,
        source="derived",
        detail=", ".join(found) + ("; install them from the vendor's index" if found else ""),
    )


FAMILY = Family("environment.imports", _ImportsStage.asks, lambda plan: (_ImportsStage(),))
