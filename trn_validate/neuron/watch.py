"""Watching a stage from outside: what the device counted while it ran.

The driver's counters are read before and after, and neuron-monitor's records are kept in
between. Both are proof of what a launch says of itself: it ran on the device, and nothing went
wrong there.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread
from types import TracebackType

from trn_validate.base import Record
from trn_validate.errors import MeasurementError
from trn_validate.evidence import VENDOR
from trn_validate.neuron.counters import CHECKS, Ran, Snapshot, judge, snapshot, what_ran
from trn_validate.neuron.finding import Finding, facts_of
from trn_validate.neuron.neuron_monitor import NAME
from trn_validate.neuron.stream import Stream
from trn_validate.neuron.tools import Tools, end
from trn_validate.stage import Context, Findings, Unmeasured
from trn_validate.verdict import Execution, Problem

_READ_SECONDS = 5.0
"""For what is left in the pipe; a helper of the tool that fled its session could hold it open."""


class Watch:
    """Reads the counters below ``root`` when entered and when left.

    What it counts in sysfs is of all processes, and complete; what it counts by neuron-monitor is
    of single processes, and lacks the last period of one that has ended.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stream = Stream()
        self.before: Snapshot | None = None
        self.after: Snapshot | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: Thread | None = None

    def __enter__(self) -> Watch:
        self.before = snapshot(self.root)
        self._child = Tools(self.root).start(NAME)
        if self._child is not None:
            self._reader = Thread(target=self._read, args=(self._child,), daemon=True)
            self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._child is not None and self._reader is not None:
            end(self._child)
            self._reader.join(_READ_SECONDS)
        self.after = snapshot(self.root)

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                # A line that the end of the tool cut off is no fault of its own.
                if line.endswith(b"\n"):
                    self.stream.feed(line.decode("utf-8", errors="replace"))

    def ran(self, pids: Iterable[int]) -> tuple[Ran, ...]:
        """What each source that can be read says of these processes, sysfs first.

        Raises:
            MeasurementError: neither can be read, or sysfs is not one series.
        """
        wanted = set(pids)
        tallies = [tally for pid, tally in self.stream.tallies.items() if pid in wanted]
        return what_ran(self.before, self.after, tallies)


class Counted(Record):
    """What the device counted of a stage's processes."""

    ran: tuple[Ran, ...] = ()
    why: str = ""
    """Why nothing could be read."""


def watched(
    run: Callable[[Context], Findings],
    context: Context,
    watching: Callable[[Path], Watch] = Watch,
) -> Findings:
    """Let a stage measure, and add to what it found what the device counted.

    Raises:
        Unmeasured: a launch failed; its problem names the errors that the device counted.
    """
    failure: Unmeasured | None = None
    with watching(Path(context.choice.signs.host_root)) as watch:
        try:
            findings = run(context)
        except Unmeasured as error:
            failure = error
    if failure is not None:
        raise Unmeasured(_with_errors(failure.problem, watch, context), failure.checks) from failure
    told = context.observer.see("neuron-monitor", tuple[Finding, ...], watch.stream.findings)
    findings.facts |= facts_of(told)
    if findings.device == context.plan.profile.device:
        _judge(findings, watch, context)
    return findings


def _judge(findings: Findings, watch: Watch, context: Context) -> None:
    """Add the checks that a stage owes whose tensors were on the device.

    Where nothing can be read they stay missing, so that it has not passed.
    """
    findings.expects += CHECKS
    counted = _counted(watch, context)
    if counted.why:
        findings.problem = findings.problem or Problem(cause="uncounted", what=counted.why)
        return
    ran = counted.ran
    checks = judge(ran)
    findings.checks += checks
    distribution = _distribution(context)
    findings.execution = Execution(
        distribution=distribution, before=ran[0].before, after=ran[0].after
    )
    if distribution and not distribution.startswith(VENDOR):
        findings.device = f"{findings.device} (rehearsal)"
    if bad := next((check for check in checks if not check.passed), None):
        findings.problem = findings.problem or Problem(cause="device", what=str(bad))


def _counted(watch: Watch, context: Context) -> Counted:
    def look() -> Counted:
        try:
            return Counted(ran=watch.ran(context.pids))
        except MeasurementError as error:
            return Counted(why=str(error))

    return context.observer.see("counts of the device", Counted, look)


def _with_errors(problem: Problem, watch: Watch, context: Context) -> Problem:
    """The problem of a launch that failed, with what the device counted of it."""
    # Where nothing could be read the launch has failed anyhow.
    counted = "; ".join(
        f"{one.source} counted {', '.join(f'{key}: {n}' for key, n in one.errors.items())}"
        for one in _counted(watch, context).ran
        if one.errors
    )
    return problem.model_copy(update={"what": f"{problem.what}; {counted}"}) if counted else problem


def _distribution(context: Context) -> str:
    """What environment.imports found executing."""
    with contextlib.suppress(KeyError):
        execution = context.earlier["environment.imports"].execution
        return execution.distribution if execution else ""
    return ""
