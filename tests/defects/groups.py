"""A launcher whose launches are jobs of ranks that are there already.

Importing torchtitan takes a rank several seconds, more than the few steps of a small model. So
there is one group of ranks for each number of processes, started when it is needed, and two of
one process, since a repetition has to be another process than what it repeats.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stages.kernels_compile import COMPILED
from tests.defects.queue import POLL_SECONDS, Queue
from trn_validate.classify import classify
from trn_validate.errors import MeasurementError
from trn_validate.launch import Cause, LaunchRequest, LaunchResult
from trn_validate.launch_local import LocalLauncher
from trn_validate.launching import DUMP
from trn_validate.spec import RunSpec
from trn_validate.supervisor import Facts
from trn_validate.torchrun import torchrun

_WALL = 3600.0
_SILENCE = 90.0
"""The longest silence of a healthy job is the import of torchtitan, and compiling its mask."""
_ALONE = frozenset({"seed", "reference", "resume"})
"""One-process launches of the first group; what is compared with them goes to the second."""


@dataclass
class Group:
    """Ranks that wait for jobs."""

    name: str
    ranks: int
    folder: Path
    jobs: int = 0
    _thread: threading.Thread | None = None
    _result: list[LaunchResult] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether it takes jobs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the ranks under the product's own supervisor."""
        queue = self.folder / "queue"
        queue.mkdir(parents=True)
        work = ("--queue", str(queue), "--device", "cpu")
        argv = torchrun(self.ranks, self.folder, "tests.defects.worker", *work)
        request = LaunchRequest(
            name=self.name,
            argv=argv,
            folder=self.folder,
            env={"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            wall_seconds=_WALL,
            silence_seconds=_SILENCE,
        )
        self._thread = threading.Thread(target=self._run, args=(request,), name=self.name)
        self._thread.start()

    def _run(self, request: LaunchRequest) -> None:
        self._result.append(LocalLauncher().launch(request))

    def carry_out(self, spec: Path) -> Facts:
        """Have one spec carried out; the facts are those of a launch of its own."""
        queue, number, began = Queue(self.folder / "queue"), self.jobs, time.monotonic()
        self.jobs += 1
        queue.put(number, spec)
        while queue.finished(number) < self.ranks:
            if not self.alive:
                hung = bool(self._result) and self._result[0].cause is Cause.HANG
                seconds = time.monotonic() - began
                return Facts(ended="silence" if hung else "exited", exit_status=1, seconds=seconds)
            time.sleep(POLL_SECONDS)
        status = int(queue.raised(number))
        return Facts(ended="exited", exit_status=status, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Let the ranks end when they have done what they are at."""
        Queue(self.folder / "queue").close()

    def join(self) -> None:
        """Wait for their end.

        Raises:
            MeasurementError: it does not come.
        """
        if self._thread is not None:
            self._thread.join(2 * _SILENCE)
            if self._thread.is_alive():
                raise MeasurementError("the ranks do not end", where=str(self.folder))


@dataclass
class Injection:
    """A defect in some launches of a stage."""

    hook: str
    launches: frozenset[str]
    follow: frozenset[str] = frozenset()
    """Launches that read what the spoiled ones wrote, so that they run again without a defect."""


class GroupLauncher:
    """A launcher that knows what it has launched before.

    A launch that no defect touches is not repeated: it gets the files that it wrote when it ran
    without one. That it would write the same again is asserted by :meth:`again`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: dict[str, Group] = {}
        self.started = 0
        self.kept: dict[str, Path] = {}
        """Folder of each clean launch."""
        self.injection: Injection | None = None
        self.seconds: dict[str, float] = {}
        """Seconds in the jobs of each group."""

    def together(self, requests: tuple[LaunchRequest, ...]) -> tuple[LaunchResult, ...]:
        """One after the other: there are no more cores than the ranks of one launch take."""
        return tuple(self.launch(request) for request in requests)

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Carry out a launch of training, or give it what it wrote before."""
        if request.records is None:
            return LocalLauncher().launch(request)
        injection = self.injection
        if injection is None:
            result = self._train(request, {"digest_steps": self._digests(request)})
            self._keep(request)
            return result
        if request.name in injection.launches:
            # What is counted after the last step is judged by nothing.
            changes = {"hooks": [injection.hook], "count_communication": False}
            return self._train(request, changes)
        if request.name in injection.follow or request.name not in self.kept:
            return self._train(request, {})
        self._give(request)
        failed = any((request.records).glob("*.failure.json"))
        return classify(request, Facts(ended="exited", exit_status=int(failed)))

    def again(self, name: str, folder: Path) -> Path:
        """Carry out a clean launch once more, in ``folder``; gives where its records are."""
        spec = self.spec(name)
        moved = spec.model_copy(
            update={
                "records": str(folder / "records"),
                "dump": str(folder / DUMP),
                "stacks": str(folder / "stacks"),
            }
        )
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(moved.model_dump_json(), encoding="utf-8")
        self._group(name, spec.degrees.world_size).carry_out(folder / "spec.json")
        return folder / "records"

    def spec(self, name: str) -> RunSpec:
        """The run spec of a clean launch."""
        return RunSpec.model_validate_json((self.kept[name] / "spec.json").read_bytes())

    def role(self, name: str) -> str:
        """The group of ranks that a clean launch ran in."""
        return _role(name, self.spec(name).degrees.world_size)

    def stop(self) -> None:
        """End every group."""
        for group in self.groups.values():
            group.close()
        for group in self.groups.values():
            group.join()
        self.groups.clear()

    def _digests(self, request: LaunchRequest) -> list[int]:
        """Steps after which the state is recorded: the last one too, to be held against another."""
        spec = json.loads((request.folder / "spec.json").read_bytes())
        return sorted({*spec["digest_steps"], spec["steps"]})

    def _train(self, request: LaunchRequest, changes: Mapping[str, object]) -> LaunchResult:
        path = request.folder / "spec.json"
        spec = json.loads(path.read_bytes()) | dict(changes)
        path.write_text(json.dumps(spec), encoding="utf-8")
        group = self._group(request.name, request.ranks)
        facts = group.carry_out(path)
        self.seconds[group.name] = self.seconds.get(group.name, 0.0) + facts.seconds
        return classify(request, facts)

    def _group(self, name: str, ranks: int) -> Group:
        role = _role(name, ranks)
        group = self.groups.get(role)
        if group is None or not group.alive:
            self.started += 1
            folder = self.folder / f"group-{self.started}"
            group = self.groups[role] = Group(f"ranks-{role}", ranks, folder)
            group.start()
        return group

    def _keep(self, request: LaunchRequest) -> None:
        """Put what a clean launch wrote aside, before its stage moves or removes it."""
        target = self.folder / "kept" / request.name
        shutil.copytree(request.folder, target, copy_function=os.link)
        self.kept[request.name] = target

    def _give(self, request: LaunchRequest) -> None:
        for source in self.kept[request.name].iterdir():
            if source.name == "spec.json":
                continue
            target = request.folder / source.name
            if source.is_dir():
                # The stage has put a checkpoint there that the launch was to resume from.
                shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)
            else:
                _link(str(source), str(target))


def _role(name: str, ranks: int) -> str:
    if name.startswith(f"{COMPILED}-"):
        # What it is held against ran in another process, and Dynamo remembers.
        return f"{ranks}c"
    return str(ranks) if ranks > 1 else ("1a" if name in _ALONE else "1b")


def _link(source: str, target: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(source, target)
