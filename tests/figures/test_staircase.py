"""The staircase of tile and wave quantization: what is drawn, said, and refused."""

# pyright: reportAttributeAccessIssue=false
import pytest

from lablib.figures import describe, figure_staircase, table

SIZES = [128, 256, 257, 512]
SECONDS, USEFUL = {"A100": [1e-5, 1e-5, 2e-5, 2e-5]}, {"A100": [0.4, 0.8, 0.4, 0.8]}


def test_both_panels_have_every_series_and_the_sentence_its_ends():
    figure = figure_staircase(SIZES, SECONDS, USEFUL, marked=[256])
    upper, lower = figure.data
    assert list(upper.y) == pytest.approx([10, 10, 20, 20]) and "µs" in figure.layout.yaxis.title.text
    assert list(lower.y) == pytest.approx([40, 80, 40, 80])
    assert describe(figure) == "For columns N from 128 to 512: A100 is useful for 40% at 128 and 80% at 256."
    assert list(table(figure)["A100, useful"]) == USEFUL["A100"]
    assert len(figure.layout.shapes) == 1


def test_a_column_more_is_a_step_up_at_that_column():
    """The step is drawn where the larger size begins, not sloping between the two."""
    assert figure_staircase(SIZES, SECONDS, USEFUL).data[0].line.shape == "vh"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figure_staircase([], {}, {}), "there must be sizes"),
        (lambda: figure_staircase(SIZES, SECONDS, {"H100": [1.0] * 4}), "the same names twice"),
        (lambda: figure_staircase(SIZES, {"A100": [1.0]}, USEFUL), "one value for each of the 4 positions"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()
