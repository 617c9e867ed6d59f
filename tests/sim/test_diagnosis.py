"""What an error says first is the cause: groups made in different orders, tags and ranks that do not exist."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import CollectiveMismatchError, DeadlockError, LaunchTimeoutError, RankError, launch

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(30)]


def test_groups_made_in_different_orders_are_called_that():
    def program() -> None:
        members = [[0, 1], [1, 2], [0, 2]]
        groups = [dist.new_group(ranks) for ranks in (members if dist.get_rank() != 2 else members[::-1])]
        for group in groups:
            if group != dist.GroupMember.NON_GROUP_MEMBER:
                dist.all_reduce(torch.ones(2), group=group)

    with pytest.raises(CollectiveMismatchError, match="called new_group in different orders") as caught:
        launch(program, ranks=3)
    assert [(call.rank, call.what) for call in caught.value.calls] == [
        (0, "made [0, 1] first"),
        (2, "made [0, 2] first"),
    ]
    assert all("groups = [dist.new_group(ranks) for ranks in" in call.source for call in caught.value.calls)


def test_groups_made_in_one_order_are_no_part_of_another_deadlock():
    def program() -> None:
        dist.new_group([0, 1])
        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(DeadlockError) as caught:
        launch(program, ranks=2)
    assert "orders" not in str(caught.value)


ASKED = "Is `group` given to every call\\? `group_dst` and `group_src` take ranks of the group"


def tree_up(send: Any, receive: Any) -> None:
    """Ranks 1, 2 and 4 of the world: the group's rank 1 sends to its rank 0."""
    group: Any = dist.new_group([1, 2, 4])
    if dist.get_rank() == 2:
        send(torch.ones(2), group)
    elif dist.get_rank() == 1:
        receive(torch.ones(2), group)


@pytest.mark.parametrize(
    "send, receive",
    [
        (lambda x, group: dist.send(x, group_dst=0), lambda x, group: dist.recv(x, group_src=1, group=group)),
        (lambda x, group: dist.send(x, 0), lambda x, group: dist.recv(x, 1)),
        (lambda x, group: dist.send(x, group_dst=0, group=group), lambda x, group: dist.recv(x, 1, group=group)),
    ],
    ids=["the group forgotten in send", "forgotten in both", "a rank of the group given as one of the world"],
)
def test_a_message_that_meets_nobody_where_there_are_groups_is_asked_about_them(send: Any, receive: Any):
    with pytest.raises(DeadlockError, match=ASKED) as caught:
        launch(tree_up, send, receive, ranks=5)
    assert "rank 2 waits in send to rank" in str(caught.value) and "rank 1 waits in recv" in str(caught.value)


def test_a_mismatch_in_a_group_is_asked_about_it_and_one_of_the_world_is_not():
    def program(members: list[int]) -> None:
        group: Any = dist.new_group(members) if members else None
        if dist.get_rank() == 0:
            dist.send(torch.ones(2), 1, group=group)
        elif dist.get_rank() == 1:
            dist.recv(torch.ones(3), 0, group=group)

    with pytest.raises(CollectiveMismatchError, match=ASKED):
        launch(program, [0, 1], ranks=3)
    with pytest.raises(CollectiveMismatchError) as caught:
        launch(program, [], ranks=3)
    assert "group_dst" not in str(caught.value)


@pytest.mark.parametrize("call", ["isend", "irecv", "send", "recv"])
@pytest.mark.parametrize(
    ("tag", "error"),
    [
        (-1, "RuntimeError: Tag must be nonnegative: got -1"),
        (1.5, "TypeError"),
        ("a", "TypeError"),
        (2**31, "TypeError"),
    ],
)
def test_a_tag_that_gloo_refuses_is_refused(call: str, tag: Any, error: str):
    with pytest.raises(RankError, match=f"rank 0 raised {error}"):
        launch(lambda: getattr(dist, call)(torch.ones(2), 1 - dist.get_rank(), tag=tag), ranks=2)


@pytest.mark.parametrize("call", ["isend", "irecv", "send", "recv", "broadcast", "reduce"])
@pytest.mark.parametrize("peer", [-1, 2, 99])
def test_a_rank_that_is_not_there_is_refused(call: str, peer: int):
    with pytest.raises(RankError, match=f"rank {peer} does not exist: group world has ranks 0 to 1"):
        launch(lambda: getattr(dist, call)(torch.ones(2), peer), ranks=2)


def test_a_time_limit_shows_the_programs_frames_alone():
    def program() -> None:
        while dist.get_rank() == 0:
            pass

    with pytest.raises(LaunchTimeoutError, match="rank 0 was at test_diagnosis.py") as caught:
        launch(program, ranks=2, timeout_s=0.2)
    text = str(caught.value)
    assert 'test_diagnosis.py", line' in text
    assert "simulation.py" not in text and "scheduler.py" not in text and "threading.py" not in text


HAS_AN_AUDIT_HOOK = """
import sys
import torch.distributed as dist
import package_with_a_hook
from lablib import LaunchTimeoutError, launch

def program():
    while dist.get_rank() == 0:
        pass

sys.addaudithook(package_with_a_hook.hook)
for _ in range(10):
    try:
        launch(program, ranks=2, timeout_s=0.05)
    except LaunchTimeoutError as error:
        print(error)
"""


@pytest.mark.timeout(150)  # a process that imports torch, on a busy machine
def test_a_packages_audit_hook_is_not_the_program(tmp_path: Path):
    # As filelock's from Python 3.12 on: Python calls it from within the simulator's own functions.
    (packages := tmp_path / "site-packages").mkdir()
    (packages / "package_with_a_hook.py").write_text("def hook(event, args):\n    sum(range(1000))\n")
    (tmp_path / "program.py").write_text(f"import sys\nsys.path.append({str(packages)!r})\n{HAS_AN_AUDIT_HOOK}")
    run = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.stdout.count("rank 0 was at program.py") == 10, run.stdout + run.stderr
    assert "package_with_a_hook" not in run.stdout
