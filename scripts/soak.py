"""Whether healthy runs pass: the ladder again and again, under other seeds, threads and load.

``make soak N=20`` runs the plan's stages to the last rung N times, each time with another seed of
weights and data, on one core or on all, idle or beside a process that computes. With
``--together 2`` two of them run side by side, which fills the cores while ranks start. Every repeat
has a reports folder of its own, so that a soak that was stopped goes on where it was: what has
passed with the same code is not run again. At the end the distribution of every deviation against
its limit is printed; with ``--write`` it goes into docs/margins.md, together with how it was made.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

from stages.parallelism import FAMILY as RUNGS
from trn_validate.errors import ConfigError, TrnValidateError, UsageError, exit_status
from trn_validate.plan import load
from trn_validate.sources import code_version
from trn_validate.store import Store
from trn_validate.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/margins.md"
KEPT = "verdicts"
# It ends with the soak, also when that is killed.
_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(10**6))
"""
FIGURES = (
    "loss against the reference",
    "grad norm against the reference",
    "gradient of step 1",
    "parameters after the last step",
)


@dataclass(frozen=True)
class Repeat:
    """One run of the plan and the circumstances that it ran under."""

    number: int
    seed: int
    cores: int
    """Cores that its processes may use, from which their threads follow."""
    busy: bool
    """Whether another process computed at the same time."""
    together: int = 1
    """Repeats that ran at the same time, this one among them."""

    @classmethod
    def of(cls, number: int, cores: int, together: int = 1) -> Repeat:
        """Repeat ``number``, counted from 0, on a machine with ``cores`` cores."""
        few = 1 if number % 4 == 3 else cores
        return cls(number, 42 + number, few, number % 2 == 1, together)

    @property
    def circumstances(self) -> str:
        """Seed, cores and load, for people."""
        load = "beside a busy process" if self.busy else "idle"
        if self.together > 1:
            beside = f"{self.together - 1} other run{'s' if self.together > 2 else ''}"
            load = f"{load} and {beside}" if self.busy else f"beside {beside}"
        return f"seed {self.seed}, {self.cores} cores, {load}"


@contextlib.contextmanager
def load_beside(busy: bool) -> Iterator[None]:
    """A process that computes until the block ends."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_once(repeat: Repeat, config: Path, folder: Path, settings: Sequence[str]) -> int:
    """Run the plan to its last rung so; gives the pipeline's exit status."""
    plan = load(config, settings=tuple(settings))
    seeds = [f"paths.native.ladders.{x.name}.workload.seed={repeat.seed}" for x in plan.ladders]
    argv = [sys.executable, "pipeline.py", "run", "--config", str(config)]
    argv += ["--until", RUNGS.members(plan)[-1].id]
    for setting in (*settings, *seeds):
        argv += ["--set", setting]
    chosen = set(sorted(os.sched_getaffinity(0))[: repeat.cores])
    with load_beside(repeat.busy):
        argv += ["--reports", str(folder)]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL) as pipeline:
            # Before it starts anything; what runs between fork and exec may hang beside a thread.
            os.sched_setaffinity(pipeline.pid, chosen)
    return pipeline.returncode


def keep_verdicts(folder: Path) -> None:
    """Keep the verdicts of a repeat that passed; its tensors would fill the disk."""
    (run,) = Store(folder).runs()[:1]
    kept = folder / KEPT
    kept.mkdir()
    for path in run.folder.glob("*.*.json"):
        shutil.copy2(path, kept / path.name)
    for path in folder.iterdir():
        if path != kept:
            shutil.rmtree(path)


def verdicts_of(folder: Path) -> tuple[Verdict, ...]:
    """The verdicts that a finished repeat has kept, or none."""
    paths = sorted((folder / KEPT).glob("*.json"))
    return tuple(
        Verdict.from_json(path.read_text(encoding="utf-8"), where=str(path)) for path in paths
    )


def done_before(folder: Path) -> bool:
    """Whether the repeat has passed with the code as it is now."""
    verdicts = verdicts_of(folder)
    current = bool(verdicts) and all(v.inputs["code"] == code_version(ROOT) for v in verdicts)
    if verdicts and not current:
        shutil.rmtree(folder)
    return current


@dataclass(frozen=True)
class Margin:
    """One deviation over all repeats, as a part of the limit that it was held against."""

    launch: str
    figure: str
    parts: tuple[float, ...]
    measured: tuple[float, ...]


def margins(verdicts: Iterable[Verdict]) -> tuple[Margin, ...]:
    """Every deviation whose limit was measured, by launch and figure."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for verdict in verdicts:
        for check in verdict.checks:
            launch, _, figure = check.name.partition(": ")
            if check.basis is None or figure not in FIGURES:
                continue
            measured = float(check.measured)
            found.setdefault((launch, figure), []).append((measured / check.basis.limit, measured))
    return tuple(
        Margin(launch, figure, tuple(p for p, _ in pairs), tuple(m for _, m in pairs))
        for (launch, figure), pairs in found.items()
    )


def table(rows: Iterable[Margin]) -> list[str]:
    """The distribution as a Markdown table; parts of the limit, so that 1 would be a failure."""
    head = ("launch", "deviation", "runs", "median", "most", "median / limit", "most / limit")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += [
        f"| {row.launch} | {row.figure} | {len(row.parts)} | {median(row.measured):.2e} "
        f"| {max(row.measured):.2e} | {median(row.parts):.3f} | {max(row.parts):.3f} |"
        for row in rows
    ]
    return lines


def page(rows: Sequence[Margin], repeats: Sequence[Repeat], passed: int, config: Path) -> str:
    """docs/margins.md."""
    day = datetime.now(UTC).date().isoformat()
    return "\n".join(
        [
            "# Margins",
            "",
            "How close healthy runs come to the limits. Made by `make soak`; do not edit.",
            "",
            f"`{config}`, {len(repeats)} runs, {passed} of them passed. {day}, Python "
            f"{platform.python_version()}, {os.cpu_count()} cores, no accelerator. A figure says "
            "nothing about a Trn2.",
            "",
            *table(rows),
            "",
            "The runs:",
            "",
            *(f"- {repeat.circumstances}" for repeat in repeats),
            "",
        ]
    )


def main() -> int:
    """Run the soak; 1 if a run did not pass."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="how many runs")
    parser.add_argument("--config", type=Path, default=Path("configs/cpu.yaml"), help="the plan")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports/soak", help="their folder")
    parser.add_argument("--together", type=int, default=1, help="how many of them at once")
    parser.add_argument("--write", action="store_true", help="write docs/margins.md")
    options = parser.parse_args()
    try:
        return soak(options)
    except TrnValidateError as error:
        print(f"error: {error}", file=sys.stderr)
        return exit_status(error)


def soak(options: argparse.Namespace) -> int:
    """Run what is left to run, then print the margins."""
    for name in ("repeats", "together"):
        if getattr(options, name) < 1:
            raise UsageError(
                "a soak has at least one run", where=f"--{name} {getattr(options, name)}"
            )
    plan = load(options.config, settings=tuple(options.settings))
    if plan.profile.device != "cpu":
        raise ConfigError("a soak repeats a plan of the CPU", where=str(options.config))
    if not RUNGS.members(plan):
        raise ConfigError("a soak repeats rungs, and the plan has one", where=str(options.config))
    cores = len(os.sched_getaffinity(0))
    numbers = range(options.repeats)
    repeats = [Repeat.of(number, cores, options.together) for number in numbers]
    with ThreadPoolExecutor(max_workers=options.together) as pool:
        statuses = list(pool.map(partial(carry_out, options), repeats))
    passed = statuses.count(0)
    folders = (folder_of(options, repeat) for repeat in repeats)
    rows = margins(verdict for folder in folders for verdict in verdicts_of(folder))
    print("\n".join(table(rows)))
    print(f"{passed} of {len(repeats)} runs passed")
    if options.write:
        PAGE.write_text(page(rows, repeats, passed, options.config), encoding="utf-8")
    return 0 if rows and passed == len(repeats) else 1


def folder_of(options: argparse.Namespace, repeat: Repeat) -> Path:
    """Where a repeat leaves what it made."""
    return Path(options.reports) / f"{repeat.number:03}"


def carry_out(options: argparse.Namespace, repeat: Repeat) -> int:
    """Run one repeat that has not passed yet, and keep its verdicts; gives its status."""
    folder, number = folder_of(options, repeat), repeat.number + 1
    print(f"run {number}/{options.repeats}: {repeat.circumstances}", file=sys.stderr)
    if done_before(folder):
        return 0
    status = run_once(repeat, options.config, folder, options.settings)
    if status == 0:
        keep_verdicts(folder)
    else:
        print(f"run {number} ended with status {status}: {folder}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
