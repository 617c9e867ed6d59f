"""Ranks get a function each, with variables of their own."""

import functools
import threading

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib.course.checks.expect import Expect

SHELF = """
shelf, calls = {}, [0]

def put(key, value, seen=[]):
    seen.append(key)
    calls[0] += 1
    shelf[key] = value
    return len(shelf), len(seen), calls[0]
"""


def notebook() -> dict:
    cells: dict = {"__name__": "a_notebook"}
    exec(SHELF, cells)
    return cells


def test_what_the_notebook_had_is_there_on_each_rank():
    cells = notebook()
    cells["shelf"]["before"] = 1
    expect = Expect(answers=[cells["put"]])
    assert expect.launch(lambda: cells["put"]("a", 1), ranks=2).values == [(2, 1, 1)] * 2


def test_what_cannot_be_copied_is_taken_as_it_is():
    class Uncopied:
        def __reduce__(self):
            raise RuntimeError("no pickle of this")

        def __call__(self) -> int:
            return id(self)

    answer = Uncopied()
    assert Expect(answers=[answer]).launch(lambda: answer(), ranks=2).values == [id(answer)] * 2


ANSWERS = """
shelf = {}
lock = threading.Lock()

def through_the_shelf(x):
    with lock:
        shelf[dist.get_rank()] = x.clone()
    dist.barrier()
    return len(shelf)

class Answer:
    shelf = {}
    def __call__(self, x):
        return through_the_shelf(x)
"""

AS_A_NOTEBOOK: list = [
    lambda answer: lambda x: answer(x),
    lambda answer: functools.partial(answer),
    lambda answer: lambda x, answers=None, nested=(lambda x: answer(x)): [answer][0](x),
    lambda answer: functools.partial(lambda answer, x: answer(x), answer),
]


@given(
    ranks=st.integers(2, 5),
    around=st.lists(st.sampled_from(AS_A_NOTEBOOK), max_size=3),
    name=st.sampled_from(["through_the_shelf", "Answer"]),
    passed=st.booleans(),
)
def test_no_rank_of_a_check_finds_what_another_put_on_a_shelf(ranks: int, around: list, name: str, passed: bool):
    cells: dict = {"__name__": "a_notebook", "dist": dist, "threading": threading}
    exec(ANSWERS, cells)
    answer = cells[name] if name == "through_the_shelf" else cells[name]()
    expect, wrapped = Expect(answers=[answer]), answer
    for wrap in around:
        wrapped = wrap(wrapped)

    def program(x: torch.Tensor, handed: dict) -> int:
        return (handed["answer"][0] if passed else wrapped)(x)

    handed = {"answer": [wrapped if passed else None]}
    run = expect.launch(program, torch.ones(1), handed, ranks=ranks)
    assert run.values == [1] * ranks
    assert cells["shelf"] == {}


def test_what_a_rank_keeps_from_call_to_call_is_still_there():
    cells = notebook()

    def program(put):
        return [put(key, 1) for key in "ab"]

    run = Expect(answers=[cells["put"]]).launch(program, cells["put"], ranks=3)
    assert run.values == [[(1, 1, 1), (2, 2, 2)]] * 3


def test_a_program_is_still_called_by_its_name_and_its_arguments():
    cells = notebook()

    def program(x):
        return cells["put"]("a", x)

    expect = Expect(answers=[cells["put"]])
    with pytest.raises(TypeError, match="program cannot be called with the 0 arguments"):
        expect.launch(program, ranks=2)
