from __future__ import annotations

import io
import sys

import pytest

from tests.builders import check, verdict
from trn_validate.progress import Progress

Captured = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    """A stderr that says of itself that somebody watches."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let stderr be a terminal; to be called in the test, since a fixture's is put back."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    return made


def test_stages_are_numbered_and_tell_what_they_ask_and_are_at(capsys: Captured) -> None:
    progress = Progress(6)
    with progress.stage("environment.device", "is it here?"):
        progress.say("looking")
    told = capsys.readouterr()
    assert told.out == ""
    first, second = told.err.splitlines()
    assert first == "[1/6] environment.device: is it here?"
    assert second.split() == ["0.0", "s", "looking"]


def test_a_stage_that_does_not_run_counts_too(capsys: Captured) -> None:
    progress = Progress(3)
    progress.skip()
    progress.skip()
    with progress.stage("parallelism.tp", "unchanged?"):
        pass
    assert capsys.readouterr().err.startswith("[3/3] parallelism.tp")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "ok parallelism.fsdp 1/1 checks 12.5 s"),
        ({"checks": (check(measured=9.0),)}, "FAILED parallelism.fsdp 0/1 checks 12.5 s"),
        ({"unmeasured": True, "checks": ()}, "ERROR parallelism.fsdp 12.5 s"),
        ({"blocked_by": "baseline.eager"}, "blocked parallelism.fsdp by baseline.eager"),
        ({"unsupported": "no kernels"}, "unsupported parallelism.fsdp 1/1 checks 12.5 s"),
    ],
)
def test_a_result_is_one_line(capsys: Captured, changes: dict[str, object], words: str) -> None:
    Progress(1).result(verdict(**changes))
    (line,) = capsys.readouterr().err.splitlines()
    assert " ".join(line.split()) == words


def test_a_verdict_that_was_kept_says_so(capsys: Captured) -> None:
    Progress(1).result(verdict(), reused=True)
    assert capsys.readouterr().err.rstrip().endswith("kept from an earlier run")


def test_quiet_means_quiet(capsys: Captured) -> None:
    progress = Progress(1, quiet=True)
    with progress.stage("environment.device", "is it here?"):
        progress.say("looking")
    progress.line("a line")
    progress.result(verdict())
    assert capsys.readouterr() == ("", "")


def test_a_stage_that_raises_lets_the_error_through(capsys: Captured) -> None:
    progress = Progress(1)
    with pytest.raises(KeyError), progress.stage("stub.one", "does it hold?"):
        raise KeyError("x")


def test_whoever_stopped_watching_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    progress = Progress(1)
    with progress.stage("stub.one", "does it hold?"):
        progress.say("working")
    progress.result(verdict())
    assert progress.quiet


def test_a_terminal_gets_a_live_line_and_plain_results(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    progress = Progress(2)
    assert progress.live
    with progress.stage("environment.device", "is it here?"):
        progress.say("looking [at] it")
    progress.result(verdict())
    told = screen.getvalue()
    assert "[1/2] environment.device" in told
    assert "parallelism.fsdp" in told
    assert "1/1 checks" in told


def test_a_live_line_ends_with_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    progress = Progress(2)
    with progress.stage("environment.device", "is it here?"):
        pass
    length = len(screen.getvalue())
    progress.say("nobody is at work")
    assert len(screen.getvalue()) == length


def test_a_terminal_that_wants_json_gets_no_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    progress = Progress(1, quiet=True)
    assert not progress.live
    with progress.stage("environment.device", "is it here?"):
        progress.say("looking")
    progress.result(verdict())
    assert screen.getvalue() == ""
