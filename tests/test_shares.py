from __future__ import annotations

from pathlib import Path

from trn_validate.shares import Share, together
from trn_validate.supervisor import Facts


def shares(*facts: Facts) -> list[Share]:
    return [Share(node=f"n{i}", folder=Path(str(i)), facts=one) for i, one in enumerate(facts)]


def test_a_launch_whose_nodes_all_exit_with_0_has_exited_with_0() -> None:
    found = together(
        shares(Facts(ended="exited", exit_status=0), Facts(ended="exited", exit_status=0))
    )
    assert (found.ended, found.exit_status) == ("exited", 0)


def test_a_node_that_failed_explains_one_that_was_asked_to_end() -> None:
    asked, failed = Facts(ended="orphaned"), Facts(ended="exited", exit_status=1)
    assert together(shares(asked, failed)).ended == "exited"
    assert together(shares(asked, failed)).exit_status == 1


def test_a_limit_explains_a_node_that_failed_after_it() -> None:
    failed, silent = Facts(ended="exited", exit_status=1), Facts(ended="silence")
    assert together(shares(failed, silent)).ended == "silence"


def test_a_node_that_was_interrupted_is_no_success_of_the_others() -> None:
    done, stopped = Facts(ended="exited", exit_status=0), Facts(ended="interrupted")
    assert together(shares(done, stopped)).ended == "interrupted"


def test_what_the_nodes_saw_is_put_together() -> None:
    one = Facts(ended="exited", exit_status=0, seconds=2, rank_pids={"0": 7}, leftovers=1)
    other = Facts(ended="exited", exit_status=0, seconds=3, rank_pids={"1": 7}, alive=[9])
    found = together(shares(one, other))
    assert (found.seconds, found.rank_pids) == (3, {"0": 7, "1": 7})
    assert (found.leftovers, found.alive) == (1, [9])
