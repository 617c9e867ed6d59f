"""The tensor-parallel calculator: what its picture says is what the closed forms say."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import pytest

from lablib import CLUSTERS
from lablib.figures import describe, table
from lablib.parallel import LayerSizes, layer_sent_bytes, two_dimensional_sent_bytes
from lablib.studies import tensor_layer_time
from lablib.widgets import tensor_calculator
from lablib.widgets.explore import Pictures
from lablib.widgets.explorer import Explorer
from lablib.widgets.tensor_calculator import tensor_layer


def test_the_bars_are_the_closed_form_on_powers_of_two():
    found = tensor_layer("dgx-a100", 4096, 16, 2, "sequence")
    layer = LayerSizes(2, 2048, 4096, 64)
    assert [time.ranks for time in found.times] == [1, 2, 4, 8, 16] and found.ranks_per_node == 8
    assert found.times[3] == tensor_layer_time(layer, CLUSTERS["dgx-a100"], 8, "sequence")


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_2d_sends_less_from_the_tokens_that_are_told(ranks: int):
    fewest = tensor_layer("dgx-h100", 4096, ranks, 1, "f and g").fewest_for_2d
    for tokens, is_less in [(fewest * 0.99, False), (fewest * 1.01, True)]:
        layer = LayerSizes(1, 64 * round(tokens / 64 + (0.5 if is_less else -0.5)), 4096, 64)
        assert (two_dimensional_sent_bytes(layer, ranks) < layer_sent_bytes(layer, ranks)) == is_less


def test_moving_a_control_redraws_the_sentence():
    shown = tensor_calculator()
    assert isinstance(shown, Explorer)
    assert "here, with 4,096, more." in shown.caption.text and "A node has 8 ranks." in shown.caption.text
    for control in shown.controls.values():
        before = shown.caption.text
        values = [option[1] if isinstance(option, tuple) else option for option in control.options]
        control.value = next(value for value in values if value != control.value)
        assert shown.caption.text != before and not shown.message.text


def test_without_widgets_it_is_pictures_with_words():
    pictures = tensor_calculator(interactive=False)
    assert isinstance(pictures, Pictures)
    assert [len(table(picture.figure)) for picture in pictures.pictures] == [5, 5, 7]
    assert all("2D would send less" in describe(picture.figure) for picture in pictures.pictures)


@pytest.mark.parametrize("wrong", [{"width": 5000}, {"ranks": 3}])
def test_a_start_that_is_none_of_the_choices_is_one_clear_error(wrong):
    with pytest.raises(ValueError, match="must be one of its values"):
        tensor_calculator(**wrong)
