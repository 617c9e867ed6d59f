"""The rule that an answer is the learner's own code, where a part of lablib may be used."""

import pytest

from lablib import parallel
from lablib.course.expect import RuleBroken
from lablib.course.rules import not_from_lablib


def uses_exchange(x):
    parallel.exchange(x, 1, x, 1)


def uses_the_solution(x):
    parallel.ring_all_reduce(x)


def finds_the_solution(x):
    getattr(parallel, "ring_all_reduce")(x)  # noqa: B009


def hides_it_in_a_helper(x):
    return [uses_the_solution(each) for each in x]


def test_what_is_allowed_may_be_taken_from_a_module():
    not_from_lablib(uses_exchange, allowed=("exchange",))


@pytest.mark.parametrize("answer", [uses_the_solution, finds_the_solution, hides_it_in_a_helper])
def test_nothing_else_may_be_taken_from_that_module(answer):
    with pytest.raises(RuleBroken, match="your own code"):
        not_from_lablib(answer, allowed=("exchange",))


def test_without_a_list_nothing_of_lablib_may_be_used():
    with pytest.raises(RuleBroken, match="exchange"):
        not_from_lablib(uses_exchange)
