"""A look at one's own function: values and output of each rank, or what went wrong; nothing is raised."""

import pytest
import torch
import torch.distributed as dist

from lablib.course import checks_for, show_source, try_out
from lablib.parallel import ring_all_reduce


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_call_here_shows_its_value(capsys):
    try_out(lambda a, b: a + b, 2, 3)
    assert said(capsys) == "returned 5\n"


def test_every_rank_shows_what_it_printed_and_returned(capsys):
    def program(x: torch.Tensor) -> torch.Tensor:
        print("hello\nfrom", dist.get_rank())
        dist.all_reduce(x)
        return x

    try_out(program, torch.ones(2), ranks=2)
    lines = said(capsys).splitlines()
    assert lines[:3] == ["rank 0: printed  hello", "rank 0: printed  from 0", "rank 0: returned float32 [2]: 2, 2"]
    assert lines[5] == "rank 1: returned float32 [2]: 2, 2"


def test_of_many_ranks_the_first_are_shown(capsys):
    try_out(dist.get_rank, ranks=20)
    assert said(capsys).splitlines()[-2:] == ["rank 15: returned 15", "... and 4 ranks more"]


def stub(*values) -> None:
    raise NotImplementedError("your turn")


@pytest.mark.parametrize("ranks", [None, 3])
def test_a_stub_is_not_attempted_yet(capsys, ranks):
    try_out(stub, ranks=ranks)
    assert said(capsys).startswith("Not attempted yet")


def test_a_value_not_yet_given_is_not_attempted_yet(capsys):
    try_out(...)
    assert said(capsys).startswith("Not attempted yet")


def test_an_exception_is_told_with_the_line(capsys):
    try_out(lambda: {}["key"])
    assert "KeyError: 'key'" in (text := said(capsys)) and '{}["key"]' in text


def test_a_deadlock_is_diagnosed(capsys):
    try_out(lambda: dist.recv(torch.ones(1), src=1 - dist.get_rank()), ranks=2)
    assert "rank 0 waits in recv" in said(capsys)


def test_a_wrong_argument_of_the_launch_is_told(capsys):
    try_out(stub, ranks=0)
    assert "ranks" in said(capsys)


def test_a_solution_is_folded_until_its_exercise_is_passed(labs):
    check = checks_for("90")
    folded = show_source(ring_all_reduce, after=check.mean)
    assert folded._repr_html_().startswith("<details><summary>") and "def " not in repr(folded)
    check.mean(lambda values: sum(values) / len(values))
    opened = show_source(ring_all_reduce, after=check.mean)
    assert opened._repr_html_().startswith("<details open>") and "def ring_all_reduce" in repr(opened)
    assert show_source(ring_all_reduce).is_open
