"""From a solution to its stub."""

import pytest

from lablib.course.building.solution import has_solution, to_stub
from lablib.course.errors import CourseError


def region(body: str, indent: str = "    ") -> str:
    return f"{indent}### BEGIN SOLUTION\n{body}\n{indent}### END SOLUTION"


RAISE = 'raise NotImplementedError("your turn")'
METHOD = f"class A:\n    def f(self):\n{region('        pass', 8 * ' ')}\n\n    def g(self):\n        return 1"


@pytest.mark.parametrize(
    ("source", "stub"),
    [
        (f"def f(x):\n    '''Twice.'''\n{region('    return 2 * x')}", f"def f(x):\n    '''Twice.'''\n    {RAISE}"),
        (METHOD, f"class A:\n    def f(self):\n        {RAISE}\n\n    def g(self):\n        return 1"),
        (
            region("a: int = 1\nb = c = 2", "") + "\nprint(a)",
            "a = ...  # your turn\nb = ...  # your turn\nc = ...  # your turn\nprint(a)",
        ),
        (
            f"def f(x):\n    # a hint\n{region('    y = 1')}\n    return y",
            f"def f(x):\n    # a hint\n    {RAISE}\n    return y",
        ),
    ],
    ids=["function", "method", "top level", "text around"],
)
def test_a_solution_becomes_a_stub_of_its_depth(source: str, stub: str):
    assert to_stub(source) == stub


def test_every_stub_is_python_and_holds_no_marker():
    source = f"def f():\n{region('    return 1')}\n\ndef g():\n{region('    return 2')}"
    stub = to_stub(source)
    compile(stub, "stub", "exec")
    assert not has_solution(stub) and stub.count("your turn") == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f():\n    ### BEGIN SOLUTION\n    pass", "without END SOLUTION"),
        ("def f():\n    pass\n    ### END SOLUTION", "without BEGIN SOLUTION"),
        ("def f():\n    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION", "cannot nest"),
        ("### BEGIN SOLUTION\ndef f():\n    return 1\n### END SOLUTION", "may only assign names: got 'def f():'"),
        ("### BEGIN SOLUTION\nx[0] = 1\n### END SOLUTION", "may only assign names"),
        ("if True:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION", "inside a function"),
    ],
)
def test_a_solution_that_cannot_be_a_stub_is_refused(source: str, message: str):
    with pytest.raises(CourseError, match="SOLUTION|solution") as raised:
        to_stub(source)
    assert message in str(raised.value)
