"""Checks that launch the learner's function on simulated ranks: what happens on a rank reaches the learner."""

import functools
import linecache
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lablib
from lablib import launch
from lablib.course import Expect, exercise
from lablib.course.checks.exercise import exercises_of
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.learner_code import learner_frames
from lablib.course.checks.trial import run_check
from lablib.course.places import find_labs, find_labs_folder

NUM_ELEMENTS = 2**20  # large enough for a ring, which sends fewest bytes


@exercise("All-reduce")
def all_reduce(expect: Expect, answer):
    def program():
        x = torch.full((NUM_ELEMENTS,), dist.get_rank() + 1.0)
        answer(x)
        return x

    run = launch(program, ranks=4)
    expect.equal("every rank holds the sum", run.values, [torch.full((NUM_ELEMENTS,), 10.0)] * 4)
    size_bytes = 4 * NUM_ELEMENTS
    expect.budget("bytes rank 0 sends", run.traffic.sent_bytes(0), at_most=2 * 3 / 4 * size_bytes, unit="B")
    expect.budget("seconds", run.timeline.makespan_s, at_most=1e-3, unit="s")


def test_a_library_call_passes_with_its_bytes_and_seconds():
    result = run_check("90", all_reduce, dist.all_reduce)
    assert result.status == "passed", result.message
    assert "bytes rank 0 sends: 6.291 MB, at most 6.291 MB" in result.message and "seconds: " in result.message


def test_a_stub_on_a_rank_is_not_attempted():
    def stub(x: torch.Tensor) -> None:
        raise NotImplementedError("your turn")

    assert run_check("90", all_reduce, stub).status == "not attempted"


def test_a_stub_line_below_code_is_not_attempted_and_named():
    def half_filled(x: torch.Tensor) -> None:
        dist.all_reduce(x)
        raise NotImplementedError("your turn")

    result = run_check("90", all_reduce, half_filled)
    assert result.status == "not attempted"
    line = half_filled.__code__.co_firstlineno + 2
    assert result.next_step.startswith(f"line {line} of half_filled still raises NotImplementedError: remove it")


def test_right_values_with_too_many_bytes_break_the_budget():
    def gather_everything(x: torch.Tensor) -> None:
        parts = [torch.empty_like(x) for _ in range(4)]
        dist.all_gather(parts, x)
        x.copy_(torch.stack(parts).sum(0))

    result = run_check("90", all_reduce, gather_everything)
    assert (result.rule, result.saw) == ("bytes rank 0 sends", "12.58 MB, 2 times the budget")


BROKEN: str = """
def broken(x):
    if dist.get_rank() == 2:
        x.no_such_method()
    dist.all_reduce(x)
"""


def test_an_exception_on_a_rank_names_rank_and_line():
    cell = "<cell 7>"  # as a notebook's cell: a file of its own, whose lines are in the cache
    linecache.cache[cell] = (len(BROKEN), None, [*BROKEN.splitlines(keepends=True)], cell)
    namespace: dict[str, Any] = {"dist": dist}
    exec(compile(BROKEN, cell, "exec"), namespace)
    result = run_check("90", all_reduce, namespace["broken"])
    assert "AttributeError on rank 2" in result.saw
    lines = result.trace.splitlines()
    assert lines[0] == "line 4 in broken: x.no_such_method()"
    assert lines[1].startswith("there: x = float32 [") and len(lines) == 2


def test_a_deadlock_is_diagnosed():
    def everybody_waits(x: torch.Tensor) -> None:
        dist.recv(x, src=(dist.get_rank() + 1) % 4)

    result = run_check("90", all_reduce, everybody_waits)
    assert result.rule == "every rank runs to its end" and "DeadlockError" in result.saw
    assert all(f"rank {rank}" in result.saw for rank in range(4))


def drops_the_handle(x: torch.Tensor) -> None:
    dist.all_reduce(x, async_op=True)


def waits_for_one_of_two(x: torch.Tensor) -> None:
    work = dist.all_reduce(x, async_op=True)
    dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    work.wait()


def scales_too_early(x: torch.Tensor) -> None:
    """The values are right."""
    work = dist.all_reduce(x, async_op=True)
    x *= 1.0
    assert work is not None
    work.wait()


def reads_too_early(x: torch.Tensor) -> None:
    """The values are right."""
    work = dist.all_reduce(x, async_op=True)
    _ = x + 1
    assert work is not None
    work.wait()


@pytest.mark.parametrize(
    ("answer", "rule", "saw"),
    [
        (drops_the_handle, "every communication is waited for", ["never waited for all_reduce", "async_op=True"]),
        (waits_for_one_of_two, "every communication is waited for", ["never waited for all_reduce", "async_op=True"]),
        (
            scales_too_early,
            "nothing is written to before the wait() of its communication",
            ["wrote to a tensor in flight", "x *= 1.0"],
        ),
        (
            reads_too_early,
            "nothing is read before the wait() of the communication that fills it",
            ["read a tensor in flight", "_ = x + 1"],
        ),
    ],
)
def test_what_is_right_by_chance_breaks_a_rule_of_its_own_whatever_the_values(answer, rule: str, saw: list[str]):
    result = run_check("90", all_reduce, answer)
    assert (result.status, result.rule) == ("failed", rule)
    assert f"ranks 0 to 3 {saw[0]}" in result.saw and saw[1] in result.saw
    if answer is scales_too_early:
        assert result.expected == "the wait() first, or a copy"


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # new names since torch 2.13
def test_an_output_in_another_place_of_its_input_breaks_a_rule_of_its_own():
    def answer(x: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(x[: len(x) // 4], x.clone())
        dist.reduce_scatter_tensor(x[: len(x) // 4], x)

    result = run_check("90", all_reduce, answer)
    assert result.rule == "an output overlaps its input only in its own place" and "piece 1 of the input" in result.saw


def test_messages_are_short_and_say_what_is_missing():
    def key(x: torch.Tensor) -> None:
        raise KeyError(x)

    def handle(x: torch.Tensor) -> None:
        dist.all_reduce(x).wait()  # pyright: ignore[reportOptionalMemberAccess]

    assert run_check("90", all_reduce, key).saw.startswith("KeyError on rank 0: the key float32 [1048576]: 1, 1, ")
    assert run_check("90", all_reduce, handle).saw.endswith(
        "(without async_op=True a call waits itself, and returns None)"
    )
    assert short_repr(key) == "the function key"
    assert short_repr(torch.optim.SGD([torch.zeros(1)])) == "SGD"


def test_a_stub_and_an_exception_count_before_a_dropped_handle():
    def raises(x: torch.Tensor) -> None:
        dist.all_reduce(x, async_op=True)
        raise KeyError("mine")

    result = run_check("90", all_reduce, raises)
    assert result.status == "failed" and "KeyError" in result.saw


def test_other_warnings_of_a_check_are_still_shown():
    @exercise("Warns")
    def warns(expect: Expect, answer):
        warnings.warn("look here", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="look here"):
        assert run_check("90", warns, 1).status == "passed"


@exercise("Sums")
def sums(expect: Expect, answer):
    expect.launch(lambda: answer(torch.ones(3)), ranks=2)


@exercise("Here")
def here(expect: Expect, answer):
    answer(torch.ones(3))


@pytest.mark.parametrize("check", [sums, here])
@pytest.mark.parametrize("code", [0, 1, "done"])
def test_an_answer_that_ends_the_process_is_told_so(check, code):
    result = run_check("90", check, lambda x: sys.exit(code))
    assert result.rule == "your code returns to its caller"
    assert f"SystemExit({code!r})" in result.saw and "sys.exit(code)" in result.saw


def test_an_error_without_a_line_of_the_learners_shows_no_internal_traceback():
    result = run_check("90", sums, functools.partial(dist.all_reduce, group="nobody"))
    assert result.status == "failed"
    assert "Traceback" not in result.message and len(result.message.splitlines()) < 8


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ((), ""),
        (([], 3), "there: items = [], count = 3"),
        ((torch.zeros(2, 3), None), "there: items = float32 [2x3]: 0, 0, 0, 0, 0, 0, count = None"),
        ((Unshowable(), 1), ""),
    ],
)
def test_an_exception_tells_the_arguments(args, shown):
    source = "def broken(" + ("items, count" if args else "") + "):\n    unused = 1\n    raise KeyError(unused)\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, "<cell 8>", "exec"), namespace)
    with pytest.raises(KeyError) as caught:
        namespace["broken"](*args)
    assert learner_frames(caught.value, __file__).splitlines()[1:] == ([shown] if shown else [])


def test_a_check_of_a_short_function_is_bounded_work(calls_of):
    """Lab 09's first check makes five launches of up to nine ranks: 19,200 calls of the library in this thread."""

    def average_gradients(module: torch.nn.Module) -> None:
        for param in module.parameters():
            grad: Any = param.grad
            dist.all_reduce(grad)
            grad /= dist.get_world_size()

    lab = next(lab for lab in find_labs(find_labs_folder()) if lab.number == "09")
    check = next(each for each in exercises_of(lab) if each.name == "average_gradients")

    def run() -> None:
        assert run_check("09", check, average_gradients, seed=3).status == "passed"

    run()  # imports, and what is computed once
    assert calls_of(run, str(Path(lablib.__file__).parent)) < 22_000
