"""A look at one's own function: values and output of each rank, or what went wrong; nothing is raised."""

import inspect

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


@pytest.mark.parametrize(("function", "ranks"), [(stub, None), (stub, 3), (..., None)])
def test_a_stub_or_no_value_is_not_attempted_yet(capsys, function, ranks):
    try_out(function, ranks=ranks)
    assert said(capsys).startswith("Not attempted yet")


@pytest.mark.parametrize(
    ("function", "ranks", "words"),
    [
        (lambda: {}["key"], None, ["KeyError: 'key'", '{}["key"]']),
        (lambda: dist.recv(torch.ones(1), src=1 - dist.get_rank()), 2, ["rank 0 waits in recv"]),
        (stub, 0, ["ranks"]),
    ],
)
def test_an_exception_a_deadlock_and_a_wrong_argument_are_told(capsys, function, ranks, words):
    try_out(function, ranks=ranks)
    told = said(capsys)
    assert all(word in told for word in words)


def half_filled(x):
    """A mean, with the stub's line still below it."""
    total = x.clone()
    if total.numel() > 1:
        total /= 2
    raise NotImplementedError("your turn")


def inside_a_block(x):
    with torch.no_grad():
        x = 2 * x
        raise NotImplementedError("your turn")


def only_a_stub_in_a_block(x):
    """Nothing but the stub: no code of the learner's."""
    with torch.no_grad():
        raise NotImplementedError("your turn")


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("function", [half_filled, inside_a_block])
def test_the_line_of_a_stub_below_code_is_named(capsys, function, ranks):
    last = function.__code__.co_firstlineno + len(inspect.getsource(function).splitlines()) - 1
    try_out(function, torch.ones(2), ranks=ranks)
    told = said(capsys)
    assert told.startswith("Not attempted yet: ")
    assert f"line {last} of {function.__name__} still raises NotImplementedError: remove it" in told


@pytest.mark.parametrize("function", [stub, only_a_stub_in_a_block])
def test_nothing_is_said_of_the_line_where_the_stub_is_all(capsys, function):
    try_out(function, torch.ones(2))
    assert said(capsys) == "Not attempted yet: solve the exercise above, run its cell, then this one.\n"


def test_a_solution_is_folded_until_its_exercise_is_passed(labs):
    check = checks_for("90")
    folded = show_source(ring_all_reduce, after=check.mean)
    assert folded._repr_html_().startswith("<details><summary>") and "def " not in repr(folded)
    check.mean(lambda values: sum(values) / len(values))
    opened = show_source(ring_all_reduce, after=check.mean)
    assert opened._repr_html_().startswith("<details open>") and "def ring_all_reduce" in repr(opened)
    assert show_source(ring_all_reduce).is_open
