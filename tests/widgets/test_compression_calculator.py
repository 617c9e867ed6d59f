"""The compression calculator: what its picture says is what the closed form says."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import pytest

from lablib.figures import describe, table
from lablib.studies import compressed_step
from lablib.widgets import compression_calculator
from lablib.widgets.compression_calculator import BANDWIDTHS, BATCHES, NUM_GRADIENTS, compression_pays
from lablib.widgets.explore import Pictures
from lablib.widgets.explorer import Explorer


def test_the_curves_are_the_closed_form_and_end_at_their_break_even():
    found = compression_pays(0.1, 1e10, 8, 3, 50)
    for batch, curve, even in zip(BATCHES, found.curves.values(), found.break_even, strict=True):
        for bandwidth, speed in zip(BANDWIDTHS, curve, strict=True):
            assert (speed > 1) == (bandwidth < even)
        before, after = (
            compressed_step(method, NUM_GRADIENTS, batch * 0.1, BANDWIDTHS[0], overlap=0.5, overhead=3.0).step_s
            for method in ("none", "int8")
        )
        assert curve[0] == before / after


def test_moving_a_control_redraws_the_sentence():
    shown = compression_calculator()
    assert isinstance(shown, Explorer)
    assert "At 10 GB/s: batch 1 3.28 times as fast (it pays below 142 GB/s)" in shown.caption.text
    for control in shown.controls.values():
        before = shown.caption.text
        control.value = next(value for _, value in control.options if value != control.value)
        assert shown.caption.text != before and not shown.message.text


def test_without_widgets_it_is_pictures_with_words():
    pictures = compression_calculator(interactive=False)
    assert isinstance(pictures, Pictures)
    for picture in pictures.pictures:
        assert picture.figure is not None
        assert "times as fast" in describe(picture.figure) and len(table(picture.figure)) == len(BANDWIDTHS)


@pytest.mark.parametrize("wrong", [{"bits": 3}, {"overlap": 60}])
def test_a_start_that_is_none_of_the_choices_is_one_clear_error(wrong):
    with pytest.raises(ValueError, match="must be one of its values"):
        compression_calculator(**wrong)
