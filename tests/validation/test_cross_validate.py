"""A constant that is true of every source survives leaving one out; one that is true of one source does not."""

from math import log

import pytest

from lablib.validation.cross_validate import Constant, HeldOut, cross_validate, fit, held_out_text, loss, read_held_out
from lablib.validation.score import prepare

SOURCES = ("one", "two", "three")


@pytest.fixture
def rows(row):
    """Three sources whose steps take 0.125 s a layer."""
    return [
        row({"id": f"{source}-{layers}", "model.layers": layers, "measured.iteration_s": layers * 0.125})
        for source in SOURCES
        for layers in (8, 16, 32)
    ]


def maker(fixed):
    return lambda values: lambda model, **_: fixed(values["s_per_layer"] * model.num_layers)


def test_a_constant_that_holds_everywhere_is_found_and_held_out_as_well_as_fitted(rows, fixed):
    results = cross_validate(rows, {"s_per_layer": Constant(0.3, 0.01, 1.0)}, maker(fixed))
    assert [result.source for result in results] == list(SOURCES)
    for result in results:
        assert result.rows == 3
        assert result.values["s_per_layer"] == pytest.approx(0.125, rel=0.05)  # the last step
        assert result.as_is == pytest.approx(140)  # 0.3 for 0.125
        assert result.fitted < 5 and result.held_out < 5


def test_a_source_that_is_different_shows_when_it_is_left_out(row, fixed):
    rows = [
        row({"id": f"{source}-{layers}", "model.layers": layers, "measured.iteration_s": layers * s_per_layer})
        for source, s_per_layer in {"one": 0.1, "two": 0.1, "odd": 0.2}.items()
        for layers in (8, 16, 32)
    ]
    results = {one.source: one for one in cross_validate(rows, {"s_per_layer": Constant(0.1, 0.01, 1)}, maker(fixed))}
    assert results["odd"].held_out == pytest.approx(50, abs=1)
    assert results["one"].fitted == pytest.approx(0, abs=1)


def test_a_constant_stays_inside_its_bounds(rows, fixed):
    ready, _ = prepare(rows)
    assert fit(ready, {"s_per_layer": Constant(0.3, 0.2, 1.0)}, maker(fixed))["s_per_layer"] == 0.2


def test_the_loss_counts_every_source_the_same(row, fixed):
    ready, _ = prepare([row({"id": f"many-{n}"}) for n in range(9)] + [row({"id": "few-1"})])
    assert loss(ready, lambda **_: fixed(4.0)) == 0
    ready, _ = prepare([row({"id": f"many-{n}"}) for n in range(9)] + [row({"id": "few-1", "measured.iteration_s": 8})])
    assert loss(ready, lambda **_: fixed(4.0)) == pytest.approx(log(2) / 2)


def test_one_source_alone_cannot_be_left_out(row, fixed):
    with pytest.raises(ValueError, match="leaving one source out needs two or more: got mine"):
        cross_validate([row()], {"s_per_layer": Constant(0.1, 0.01, 1.0)}, maker(fixed))


@pytest.mark.parametrize("figures", [(0.0, 0.0, 1.0), (2.0, 0.5, 1.0), (0.1, 0.5, 1.0)])
def test_bounds_that_exclude_the_value_are_refused(figures):
    with pytest.raises(ValueError, match="0 < minimum <= value <= maximum"):
        Constant(*figures)


def test_results_are_kept_and_read_again():
    results = [HeldOut("one", 3, 9.5, 8.25, 9.75, {"s_per_layer": 0.125})]
    text = held_out_text(results, {"s_per_layer": Constant(0.1, 0.01, 1.0)})
    assert read_held_out(text) == (results, {"s_per_layer": 0.1})
    with pytest.raises(ValueError, match="not a result of cross-validation"):
        read_held_out('{"sources": [{"source": "one"}], "constants": {}}')


def test_a_constant_that_the_rows_say_nothing_about_stays_in_the_middle_of_its_bounds(rows, fixed):
    ready, _ = prepare(rows)
    constants = {"s_per_layer": Constant(0.3, 0.01, 1.0), "idle": Constant(0.5, 0.04, 1.0)}
    assert fit(ready, constants, maker(fixed))["idle"] == pytest.approx(0.2)
