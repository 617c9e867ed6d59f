"""Formulas for numbers and arrays alike: their few helpers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lablib.cost.arrays import distinct, distinct_rows

numbers = st.integers(-3, 5) | st.sampled_from([10**6, 10**12])


@given(st.lists(numbers))
def test_distinct_numbers_are_those_that_numpy_finds(values):
    found, which = distinct(np.array(values, np.int64))
    expected, of_each = np.unique(np.array(values, np.int64), return_inverse=True)
    assert found.tolist() == expected.tolist() and which.tolist() == of_each.tolist()


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=30), numbers)
def test_distinct_rows_are_each_there_once_and_give_back_all(rows, same_for_all):
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    found, which = distinct_rows(*columns, same_for_all)
    assert [tuple(column[i] for column in found) for i in which] == [(*row, same_for_all) for row in rows]
    assert len(set(zip(*(column.tolist() for column in found), strict=True))) == len(found[0]) == len(set(rows))
