from __future__ import annotations

from pathlib import Path

import pytest

from trn_validate.launch import Cause, FakeLauncher, Launcher, LaunchRequest, LaunchResult
from trn_validate.launch_local import LocalLauncher


def request(name: str) -> LaunchRequest:
    return LaunchRequest(
        name=name, argv=("true",), folder=Path("unused"), wall_seconds=1, silence_seconds=1
    )


def answer(request: LaunchRequest) -> LaunchResult:
    return LaunchResult(
        name=request.name, argv=request.argv, cause=Cause.COMPLETED, exit_status=0, seconds=0.5
    )


def test_the_fake_launcher_answers_with_its_handler_and_remembers_what_it_was_asked() -> None:
    fake = FakeLauncher(answer)
    assert fake.launch(request("first")).name == "first"
    assert fake.requests == [request("first")]


def test_the_fake_launcher_answers_several_requests_in_their_order() -> None:
    fake = FakeLauncher(answer)
    results = fake.together((request("one"), request("two")))
    assert [result.name for result in results] == ["one", "two"]
    assert [asked.name for asked in fake.requests] == ["one", "two"]


def test_an_error_of_the_handler_reaches_whoever_launched() -> None:
    def refuse(request: LaunchRequest) -> LaunchResult:
        raise KeyError(request.name)

    with pytest.raises(KeyError, match="odd"):
        FakeLauncher(refuse).launch(request("odd"))


def test_both_launchers_satisfy_the_protocol() -> None:
    launchers: list[Launcher] = [FakeLauncher(answer), LocalLauncher()]
    assert all(callable(one.launch) and callable(one.together) for one in launchers)


def test_only_a_launch_with_complete_results_may_be_judged() -> None:
    assert {cause for cause in Cause if cause.usable} == {Cause.COMPLETED, Cause.TEARDOWN}


def test_every_cause_explains_itself_in_a_sentence_of_its_own() -> None:
    phrases = [cause.phrase for cause in Cause]
    assert all(len(phrase.split()) > 3 for phrase in phrases)
    assert len(set(phrases)) == len(phrases)


def test_a_cause_is_the_word_that_is_written_down() -> None:
    assert Cause("out_of_memory") is Cause.OUT_OF_MEMORY
    assert str(Cause.HANG) == "hang"
