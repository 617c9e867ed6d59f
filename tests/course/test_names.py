"""Names of a cell: what it binds, what it uses, and what it needs of no earlier cell."""

import pytest

from lablib.course.building.names import bound_at_once, names


@pytest.mark.parametrize(
    "source, bound",
    [
        ("a = 1", {"a"}),
        ("a = a + 1", set()),
        ("a, b = b, 1", {"a"}),
        ("a += 1", set()),
        ("for i in range(3):\n    x = i", {"i"}),
        ("for i in i:\n    pass", set()),
        ("if a:\n    b = 1\nb = 2", {"b"}),
        ("if b:\n    b = 1\nb = 2", set()),
        ("with open(p) as f:\n    t = f.read()", {"f", "t"}),
        ("def f():\n    return g\ng = 1", {"f"}),
        ("import a.b as c, d.e\nfrom x import y as z", {"c", "d", "z"}),
        ("x = [x for x in y]", set()),
        ("print(a)\na = 1\nb = a", {"b"}),
        ("a: int = 1\nb: int", {"a"}),
        ("try:\n    a = 1\nfinally:\n    b = 1", set()),
    ],
)
def test_what_every_run_binds_before_it_uses_it(source, bound):
    assert bound_at_once(source) == bound
    assert bound <= names(source)[0]


@pytest.mark.parametrize(
    ("source", "bound", "used"),
    [
        ("import math as m\nfrom a import b", {"m", "b"}, set()),
        ("def area(r):\n    s = m.pi\n    return s * scale(r)", {"area"}, {"m", "scale"}),
        ("for i in range(n):\n    x = i", {"i", "x"}, {"range", "n", "i"}),
        ("y = [x for x in xs]", {"y"}, {"xs"}),
        ("y = [x for x in xs]\nx = {x for (x, z) in y}", {"x", "y"}, {"xs"}),
        ("def x():\n    pass\ny = [x for x in xs]", {"x", "y"}, {"xs"}),
        ("import x\ny = {x: z for x, z in xs}", {"x", "y"}, {"xs"}),
        ("with a() as b:\n    c += 1", {"b", "c"}, {"a", "c"}),
        ("class A(B):\n    def f(self):\n        return g(self)", {"A"}, {"B", "g"}),
    ],
)
def test_names_bound_and_used_are_read_from_the_source(source: str, bound: set[str], used: set[str]):
    found_bound, found_used = names(source)
    assert found_bound == bound and used <= found_used
