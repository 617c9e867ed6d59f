"""The parameters cell, and the values a user wants instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.course.building.parameters import check_values, read_parameters
from lablib.course.errors import CourseError

CELL = """
backend: str = "sim"  # sim | gloo | nccl: where ranks run
ranks: int = 8  # number of ranks
cluster: str = "dgx-h100"  # the machine
quick: bool = True  # small sizes
learning_rate: float = 1e-3  # step size
shift: int = -1  # may be negative
"""
PARAMETERS = read_parameters(CELL)


def test_a_cell_is_read_with_types_defaults_help_and_choices():
    backend, ranks, *_, shift = PARAMETERS
    assert (backend.name, backend.kind, backend.default) == ("backend", "str", "sim")
    assert backend.choices == ("sim", "gloo", "nccl") and ranks.choices == ()
    assert ranks.help == "number of ranks" and shift.default == -1


def test_text_is_converted_to_the_declared_type():
    values = {"ranks": "4", "quick": "no", "learning_rate": "0.5", "backend": "gloo", "shift": "-3"}
    assert check_values(PARAMETERS, values) == {
        "ranks": 4, "quick": False, "learning_rate": 0.5, "backend": "gloo", "shift": -3,
    }  # fmt: skip


def test_values_that_already_have_a_type_are_checked_too():
    assert check_values(PARAMETERS, {"learning_rate": 1, "quick": False}) == {"learning_rate": 1.0, "quick": False}
    with pytest.raises(CourseError, match="ranks must be an int: got True"):
        check_values(PARAMETERS, {"ranks": True})


@given(least=st.integers(-10, 10), below=st.integers(1, 100), above=st.integers(0, 100))
def test_the_least_value_is_what_the_help_says(least: int, below: int, above: int):
    parameters = read_parameters(f"replicas: int = {least}  # copies on this machine, {least} or more")
    assert check_values(parameters, {"replicas": str(least + above)}) == {"replicas": least + above}
    with pytest.raises(CourseError) as raised:
        check_values(parameters, {"replicas": str(least - below)})
    text = str(raised.value)
    assert text.startswith(f"replicas must be at least {least}: got {least - below}; try -p replicas ")
    assert int(text.rsplit(" ", 1)[-1]) >= least
    with pytest.raises(CourseError, match=f"replicas must be at least {least}, as its help says"):
        read_parameters(f"replicas: int = {least - below}  # copies, {least} or more")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": "four"}, "ranks must be an int: got 'four'; try --ranks 4"),
        ({"ranks": "4.0"}, "ranks must be an int: got '4.0'; try --ranks 4"),
        ({"ranks": "0"}, "ranks must be at least 1: got 0; try --ranks 4"),
        ({"ranks": "-2"}, "ranks must be at least 1: got -2; try --ranks 4"),
        ({"rank": "4"}, "unknown parameter 'rank': did you mean 'ranks'?"),
        ({"quick": "maybe"}, "quick must be a bool: got 'maybe'; try --quick or --no-quick"),
        ({"learning_rate": "fast"}, "learning_rate must be a float: got 'fast'; try -p learning_rate 0.5"),
        ({"backend": "glo"}, "backend must be one of sim, gloo, nccl: got 'glo'; did you mean 'gloo'?"),
        ({"backend": ""}, "backend must be one of sim, gloo, nccl: got ''; try --backend sim"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(values: dict[str, str], message: str):
    with pytest.raises(CourseError) as raised:
        check_values(PARAMETERS, values)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ranks = 8  # no type", "name: type = literal  # help"),
        ("ranks: int = 8", "name: type = literal  # help"),
        ("sizes: list = [1]  # a list", "must be str, int, float, bool"),
        ("ranks: int = 4 + 4  # a sum", "must be a literal"),
        ("ranks: int = 8.0  # a float", "ranks says int and holds a float"),
        ("quick: bool = 1  # an int", "quick says bool and holds a int"),
        ("ranks: int = 8  # try ranks=4", "must have one `=`"),
        ("print(ranks)", "name: type = literal  # help"),
    ],
)
def test_a_line_that_declares_no_parameter_is_refused(line: str, message: str):
    with pytest.raises(CourseError) as raised:
        read_parameters(line)
    assert message in str(raised.value)


def test_papermill_reads_the_same_parameters():
    import nbformat
    from papermill.inspection import _infer_parameters

    cell = nbformat.v4.new_code_cell(CELL.strip(), metadata={"tags": ["parameters"]})
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel})
    notebook.metadata["papermill"] = {}
    assert [p.name for p in _infer_parameters(notebook)] == [p.name for p in PARAMETERS]
