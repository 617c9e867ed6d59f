"""Sets of moments: unions, intersections and differences of intervals are those of the seconds they cover."""

from hypothesis import given
from hypothesis import strategies as st

from lablib.record.timeline import Interval, difference, intersection, length, overlap, union

intervals = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda pair: (float(pair[0]), float(sum(pair)))), max_size=8
)


def seconds(some: list[Interval]) -> set[int]:
    return {second for start, end in some for second in range(int(start), int(end))}


def is_apart(some: list[Interval]) -> bool:
    """Sorted, none of them empty, and none touches the next."""
    return all(start < end for start, end in some) and all(a[1] < b[0] for a, b in zip(some, some[1:], strict=False))


@given(intervals)
def test_a_union_covers_the_same_seconds_and_joins_what_touches(some):
    merged = union(some)
    assert seconds(merged) == seconds(some) and is_apart(merged) and length(merged) == len(seconds(some))


@given(intervals, intervals)
def test_what_two_have_in_common_and_what_only_one_has(some, others):
    a, b = union(some), union(others)
    assert seconds(intersection(a, b)) == seconds(a) & seconds(b) and overlap(a, b) == len(seconds(a) & seconds(b))
    assert seconds(difference(a, b)) == seconds(a) - seconds(b)
    for found, expected in ((intersection(a, b), seconds(a) & seconds(b)), (difference(a, b), seconds(a) - seconds(b))):
        assert length(found) == len(expected) and all(start < end for start, end in found)
