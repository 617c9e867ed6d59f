"""The picture of a launch: every element has the number of its program, and the frames are the chosen program's."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.figures import describe, table
from lablib.kernels.accesses import Access, Launch, Operand
from lablib.labs.lab06 import _rectangles, figure_tiles


def launch(shape=(4, 6), grid=(2, 3, 1), kind="store"):
    """Program (i, j) touches a tile of 2 x 2; all read the first element of w."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    tensors = {"x": Operand("x", shape, (shape[1], 1), 4, 0), "w": Operand("w", (3,), (1,), 2, 4096)}
    accesses = []
    for i, j in np.ndindex(grid[:2]):
        tile = index[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].ravel()
        accesses += [Access((i, j, 0), "load", "w", np.array([0]), 2), Access((i, j, 0), kind, "x", tile, 4)]
    return Launch("k", grid, tensors, accesses)


def traces(figure, panel, mode):
    axis = f"x{panel}" if panel > 1 else "x"
    return [one for one in figure.data if one.xaxis == axis and getattr(one, "mode", "heat") == mode]


def test_numbers_and_colours_tell_the_program():
    figure = figure_tiles(launch(), (1, 2))
    (numbers,), (heat,) = traces(figure, 1, "text"), traces(figure, 1, "heat")
    assert len(numbers.text) == 24
    for column, row, text in zip(numbers.x, numbers.y, numbers.text, strict=True):
        program = 3 * (row // 2) + column // 2
        assert text == str(program) and heat.z[row][column] == program % 8 + 1
    (shared,) = traces(figure, 2, "text")
    assert list(shared.text) == ["0+"]  # of w only one element is touched, by all
    assert traces(figure, 2, "heat")[0].z.tolist() == [[1, 0, 0]]
    assert "program 0, 1, 2, 3, 4, 5" in traces(figure, 2, "heat")[0].hovertext[0][0]


@pytest.mark.parametrize(
    ("kind", "frames"), [("load", ["read"]), ("store", ["written"]), ("atomic", ["read", "written"])]
)
def test_the_chosen_programs_tile_is_framed(kind, frames):
    figure = figure_tiles(launch(kind=kind), (1, 2))
    lines = [one for one in traces(figure, 1, "lines") if one.x[0] is not None]
    assert [one.name for one in lines] == [f"{name} by program 5 (1, 2)" for name in frames]
    for line in lines:
        assert (min(line.x[:5]), max(line.x[:5]), min(line.y[:5]), max(line.y[:5])) == (3.5, 5.5, 1.5, 3.5)


@given(cells=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_frames_cover_every_place_once_and_nothing_else(cells):
    rows, columns = (np.array([place[i] for place in sorted(cells)], dtype=int) for i in (0, 1))
    covered = [
        (row, column)
        for x0, x1, y0, y1 in _rectangles(rows, columns)
        for row in range(round(y0 + 0.5), round(y1 + 0.5))
        for column in range(round(x0 + 0.5), round(x1 + 0.5))
    ]
    assert sorted(covered) == sorted(cells)


def test_the_sentence_and_the_table_have_the_bytes():
    figure = figure_tiles(launch(), (0, 1))
    assert describe(figure) == (
        "6 programs of k: program 1 (0, 1) reads 2 B and writes 16 B; all together move 108 B, 98 B if each element "
        "came once."
    )
    found = table(figure)
    assert found["tensor"].tolist() == ["x", "w"]
    assert found["moved by all (B)"].tolist() == [96, 12] and found["each element once (B)"].tolist() == [96, 2]
    assert found["most programs of an element"].tolist() == [1, 6]


def test_a_long_vector_is_broken_into_rows_and_a_number_is_a_square():
    tensors = {"x": Operand("x", (70,), (1,), 4, 0), "s": Operand("s", (), (), 4, 512)}
    accesses = [Access((0, 0, 0), "load", "x", np.arange(70), 4), Access((0, 0, 0), "store", "s", np.array([0]), 4)]
    figure = figure_tiles(Launch("k", (1, 1, 1), tensors, accesses))
    assert traces(figure, 1, "heat")[0].z.shape == (3, 32) and traces(figure, 2, "heat")[0].z.shape == (1, 1)


@given(size=st.integers(1, 200), width=st.integers(1, 32))
def test_a_vector_is_broken_into_rows_of_the_width(size, width):
    tensors, every = {"x": Operand("x", (size,), (1,), 4, 0)}, np.arange(size)
    one = Launch("k", (1, 1, 1), tensors, [Access((0, 0, 0), "load", "x", every, 4)])
    if size > 32 * width:
        with pytest.raises(ValueError, match="x must have at most 32 rows and columns"):
            figure_tiles(one, vector_width=width)
        return
    (numbers,) = traces(figure_tiles(one, vector_width=width), 1, "text")
    assert [row * min(width, size) + column for row, column in zip(numbers.y, numbers.x, strict=True)] == list(every)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figure_tiles(launch(), (2,)), r"program must be one of the grid \(2, 3, 1\): got \(2,\)"),
        (lambda: figure_tiles(launch(), (0, -1)), "must be one of the grid"),
        (lambda: figure_tiles(launch(), ()), "must be one of the grid"),
        (lambda: figure_tiles(launch((4, 66), (2, 33, 1))), r"x must have at most 32 rows and columns.*\(4, 66\)"),
        (lambda: figure_tiles(Launch("k", (1, 1, 1), {})), "must access something to be drawn: got none of k"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
