"""Which plan, which run: what every command settles before it does anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from trn_validate import plan as plans
from trn_validate.config import Plan
from trn_validate.errors import ConfigError, DeviceAbsent, UsageError
from trn_validate.fingerprint import differences, fingerprint
from trn_validate.paths import write_atomic
from trn_validate.run import Run
from trn_validate.store import Store, kind_of
from trn_validate.target import Choice, choose, host_root, read_signs

CHECKOUT = Path(__file__).resolve().parent.parent
REPORTS = CHECKOUT / "reports"
ENVIRONMENT = "environment.json"
"""The fingerprint with which a run was started, in the run folder."""

# Both are safe loaders; the one in C, where PyYAML was built with it, is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Chosen:
    """A plan, and how the host came to it."""

    plan: Plan
    choice: Choice


def choose_plan(
    config: Path | None, model_path: str, settings: Iterable[str], *, checkout: Path = CHECKOUT
) -> Chosen:
    """Take the plan that is asked for, or the one that the host's signs select.

    Raises:
        DeviceAbsent: no plan is asked for and the signs select none.
        ConfigError: the plan cannot hold.
    """
    choice = choose(read_signs(host_root()))
    if config is None:
        if choice.refusal or choice.target is None:
            raise DeviceAbsent(choice.refusal)
        config = checkout / "configs" / f"{choice.target}.yaml"
    try:
        # Shown as it would be typed, so that messages and rerun commands are the same anywhere.
        config = config.absolute().relative_to(Path.cwd())
    except ValueError:
        config = config.absolute()
    return Chosen(plans.load(config, model_path=model_path, settings=settings), choice)


def plan_text(plan: Plan) -> str:
    """The plan as the run folder keeps it: every value that was in force."""
    return yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=False)


def plan_of(run: Run) -> Plan:
    """The plan that a run was made with, read again from its file with the same settings.

    Raises:
        ConfigError: the file is gone or cannot hold any more.
    """
    where = str(run.folder / "plan.yaml")
    try:
        raw = yaml.load(run.plan_text(), _LOADER)
        source, path, settings = raw["source"], raw["path"], raw["settings"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"not a plan of a run ({error})", where=where) from None
    file = Path(source)
    if not file.exists() and not file.is_absolute():
        # Named as it was typed in the checkout; this command may be typed elsewhere.
        file = run.checkout / file
    return plans.load(file, model_path=path, settings=settings)


def fingerprint_now() -> dict[str, str]:
    """The fingerprint of this machine and environment."""
    return fingerprint(host_root())


def continued(store: Store, plan: Plan, environment: Mapping[str, str]) -> tuple[Run | None, str]:
    """The newest run of the plan's target and path, if the environment is still that run's.

    Gives the reason where there is a run that cannot be continued.
    """
    run = store.newest(plan.target, plan.path, plan.nodes)
    if run is None:
        return None, ""
    before = _environment(run)
    changed = differences(before, run.redactor().structure(dict(environment)))
    if changed:
        return None, f"the environment changed since {run.name}: {'; '.join(changed[:3])}"
    return run, ""


def _environment(run: Run) -> dict[str, str]:
    try:
        found = json.loads((run.folder / ENVIRONMENT).read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def start(store: Store, plan: Plan, environment: Mapping[str, str]) -> Run:
    """Start a run folder.

    Raises:
        FolderError: it could not be made.
    """
    run = store.create(plan.target, plan.path, plan_text(plan), nodes=plan.nodes)
    redacted = run.redactor().structure(dict(environment))
    write_atomic(run.folder / ENVIRONMENT, (json.dumps(redacted, indent=2) + "\n").encode())
    return run


def keep_plan(run: Run, plan: Plan) -> None:
    """Put the plan that is in force into the run folder; the one before it is kept beside."""
    text, before = plan_text(plan), run.plan_text()
    if text == before:
        return
    number = 1
    while (kept := run.folder / f"plan-{number}.yaml").exists():
        number += 1
    redactor = run.redactor()
    write_atomic(kept, redactor.text(before).encode())
    write_atomic(run.folder / "plan.yaml", redactor.text(text).encode())
    write_atomic(run.private / "plan.yaml", text.encode())


def newest(store: Store, plan: Plan | None) -> Run:
    """The newest run, of a plan's target and path where one is given.

    Raises:
        UsageError: there is none.
    """
    if plan is not None:
        run = store.newest(plan.target, plan.path, plan.nodes)
        what = f"of {kind_of(plan.target, plan.path, plan.nodes)}"
    else:
        run, what = next(iter(store.runs()), None), "at all"
    if run is None:
        raise UsageError(
            f"there is no run {what}", where=str(store.root), todo="Start one with: make validate"
        )
    return run
