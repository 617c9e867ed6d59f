"""The rule that an answer is the learner's own code, where a part of lablib may be used."""

import weakref
from itertools import accumulate

import numpy as np
import pandas as pd
import pytest

from lablib import parallel
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.rules import not_from_lablib


def uses_exchange(x):
    parallel.exchange(x, 1, x, 1)


def uses_the_solution(x):
    parallel.ring_all_reduce(x)


def finds_the_solution(x):
    getattr(parallel, "ring_all_reduce")(x)  # noqa: B009


def hides_it_in_a_helper(x):
    return [uses_the_solution(each) for each in x]


def imports_a_part(x):
    from lablib import parallel  # noqa: F401


def imports_it_under_another_name(x):
    import lablib.parallel as p  # noqa: F401


def imports_all_in_a_helper(x):
    def helper():
        import lablib  # noqa: F401


def imports_and_names_its_phase(x):
    import lablib.phases

    with lablib.phase("forward"):
        return x


def imports_another_library(x):
    import sys  # noqa: F401


@pytest.mark.parametrize("answer", [imports_a_part, imports_it_under_another_name, imports_all_in_a_helper])
def test_an_import_that_is_not_used_is_refused_too(answer):
    with pytest.raises(RuleBroken, match="lablib.* as a whole"):
        not_from_lablib(answer)


@pytest.mark.parametrize("answer", [imports_and_names_its_phase, imports_another_library])
def test_an_import_for_what_is_allowed_passes(answer):
    not_from_lablib(answer)


def test_what_is_allowed_may_be_taken_from_a_module():
    not_from_lablib(uses_exchange, allowed=("exchange",))


@pytest.mark.parametrize("answer", [uses_the_solution, finds_the_solution, hides_it_in_a_helper])
def test_nothing_else_may_be_taken_from_that_module(answer):
    with pytest.raises(RuleBroken, match="your own code"):
        not_from_lablib(answer, allowed=("exchange",))


def test_without_a_list_nothing_of_lablib_may_be_used():
    with pytest.raises(RuleBroken, match="exchange"):
        not_from_lablib(uses_exchange)


@pytest.mark.parametrize(
    "held", [weakref.ref(uses_the_solution), np.array([uses_the_solution]), pd.Series([len, uses_the_solution])]
)
def test_a_reference_and_an_array_of_functions_are_looked_into(held):
    with pytest.raises(RuleBroken, match="ring_all_reduce"):
        not_from_lablib(lambda x: held)


def test_a_function_of_another_library_is_refused_under_any_name():
    not_from_lablib(lambda xs: accumulate(xs), refused=[np.cumsum])
    total = np.cumsum
    with pytest.raises(RuleBroken, match="it uses numpy.cumsum"):
        not_from_lablib(lambda xs: total(xs), refused=[np.cumsum])
    with pytest.raises(RuleBroken, match="it uses numpy.cumsum"):
        not_from_lablib(lambda xs: np.cumsum(xs), refused=[np.cumsum])


def test_a_module_may_be_refused_as_a_whole_and_its_parts_not():
    by_name = "cum" + "sum"
    not_from_lablib(lambda xs: np.linalg.norm(xs), refused=[np, np.linalg])
    with pytest.raises(RuleBroken, match="it uses numpy as a whole"):
        not_from_lablib(lambda xs: getattr(np, by_name)(xs), refused=[np])
    with pytest.raises(RuleBroken, match=r"it uses numpy\.linalg as a whole"):
        not_from_lablib(lambda xs: getattr(np.linalg, by_name)(xs), refused=[np.linalg])
