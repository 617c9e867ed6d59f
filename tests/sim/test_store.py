"""The store's timeouts are in virtual time: they run out when no rank can set the key before that moment any more."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from lablib import DeadlockError, RankError, launch

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(30)]


def store() -> dist.Store:  # pyright: ignore[reportPrivateImportUsage]
    return _get_default_store()


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def sleep(number: float) -> None:
    """Virtual seconds."""
    with pytest.raises(dist.DistStoreError):
        store().wait(["a key of no one"], seconds(number))


def test_a_wait_for_a_key_that_nobody_sets_ends_after_its_seconds_as_on_gloo():
    def program() -> str:
        with pytest.raises(dist.DistStoreError) as caught:
            store().wait(["a", "never"], seconds(3.5))
        return str(caught.value)

    for text in launch(program, ranks=3).values:
        assert "wait timeout after 3.5 s" in text and "never" in text


def test_the_rank_that_gave_up_goes_on_at_that_moment():
    def program() -> None:
        if dist.get_rank() == 1:
            with pytest.raises(dist.DistStoreError):
                store().wait(["never"], seconds(2))
        dist.barrier()

    run = launch(program, ranks=2)
    assert run.timeline.makespan_s == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(("timeout_s", "found"), [(4, "here"), (2, "too late"), (2.999, "too late"), (3.01, "here")])
def test_a_key_that_is_set_in_time_is_found_and_one_that_comes_later_is_not(timeout_s: float, found: str):
    """Rank 1 sets it after 3 seconds of its own time, in which it also waits for a message that is on its way."""

    def program() -> str:
        if dist.get_rank() == 0:
            try:
                store().wait(["key"], seconds(timeout_s))
            except dist.DistStoreError:
                return "too late"
            return store().get("key").decode()
        if dist.get_rank() == 2:
            sleep(1)
            dist.send(torch.ones(1), dst=1)
            return ""
        dist.recv(torch.ones(1), src=2)
        sleep(2)
        store().set("key", "here")
        return ""

    assert launch(program, ranks=3).values[0] == found


def test_the_stores_own_timeout_is_that_of_the_rank_that_set_it():
    def program() -> str:
        if dist.get_rank() == 0:
            store().set_timeout(seconds(1))
            try:
                return store().get("answer").decode()
            except dist.DistStoreError as error:
                store().set("answer", "late")
                return str(error)
        return store().get("answer").decode()

    values = launch(program, ranks=2).values
    assert "wait timeout after 1 s" in values[0] and values[1] == "late"


def test_the_earliest_of_several_gives_up_first_and_can_set_what_the_others_wait_for():
    def program() -> str:
        rank = dist.get_rank()
        try:
            store().wait([f"key {rank}"], seconds(rank + 1))
            return "found"
        except dist.DistStoreError:
            for other in range(4):
                store().set(f"key {other}", "")
            return "gave up"

    assert launch(program, ranks=4).values == ["gave up", "found", "found", "found"]


def test_a_rank_in_a_collective_is_no_reason_to_wait_longer():
    def program() -> None:
        if dist.get_rank() == 0:
            store().wait(["never"], seconds(1))
        dist.barrier()

    with pytest.raises(RankError, match="rank 0 raised DistStoreError: wait timeout after 1 s") as caught:
        launch(program, ranks=2)
    assert isinstance(caught.value.__cause__, dist.DistStoreError)


def test_without_a_timeout_it_is_a_deadlock_as_before():
    with pytest.raises(DeadlockError, match="waits in the store for the key 'never'"):
        launch(lambda: store().get("never"), ranks=2)


def test_a_rank_that_tries_again_for_ever_is_a_deadlock_in_the_end():
    def program() -> None:
        while dist.get_rank() == 0:
            try:
                return store().wait(["never"], seconds(1))
            except dist.DistStoreError:
                continue
        dist.barrier()

    with pytest.raises(DeadlockError, match="waits in the store for the key 'never'"):
        launch(program, ranks=2)


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_a_timeout_that_is_not_above_zero_is_none(timeout_s: float):
    with pytest.raises(DeadlockError):
        launch(lambda: store().wait(["never"], seconds(timeout_s)), ranks=2)


def test_a_timeout_that_is_no_time_is_refused():
    with pytest.raises(RankError, match="TypeError"):
        launch(lambda: store().wait(["never"], "soon"), ranks=2)  # pyright: ignore
