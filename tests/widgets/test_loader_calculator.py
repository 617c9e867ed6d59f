"""The loader calculator: what its picture says is what simulation and closed forms say."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import pytest

from lablib.data.loading.loader import Jitter, Loader, draw_times
from lablib.data.loading.loader_timeline import run_loop
from lablib.figures import describe, table
from lablib.widgets import loader_calculator
from lablib.widgets.explore import Pictures
from lablib.widgets.explorer import Explorer
from lablib.widgets.loader_calculator import NUM_BATCHES, PREFETCHES, idle_shares


def test_the_shares_are_those_of_a_simulated_run():
    chosen, shares = idle_shares(0.2, 100, 2, 4, 0.1)
    assert chosen == 4 and all(len(line) == len(PREFETCHES) for line in shares.values())
    simulated, exponential, constant = shares.values()
    loads = draw_times(0.2, NUM_BATCHES, Jitter.LOGNORMAL, 1.0)
    run = run_loop(Loader(2, 4), loads, [0.1] * NUM_BATCHES)
    assert simulated[PREFETCHES.index(4)] == pytest.approx(run.idle_share_from(0))
    assert simulated == sorted(simulated, reverse=True) and exponential == sorted(exponential, reverse=True)
    assert constant == [0.0] * len(PREFETCHES)


def test_without_jitter_a_loader_that_is_fast_enough_waits_for_nothing():
    _, shares = idle_shares(0.2, 0, 2, 1, 0.1)
    assert shares["this loader, simulated"] == pytest.approx([0.0] * len(PREFETCHES), abs=1e-9)
    _, slow = idle_shares(0.4, 0, 2, 1, 0.1)
    assert slow["this loader, simulated"] == pytest.approx([0.5] * len(PREFETCHES), abs=0.01)


def test_moving_a_control_redraws_the_sentence():
    shown = loader_calculator()
    assert isinstance(shown, Explorer)
    assert "With prefetch 2 the device waits: this loader, simulated" in shown.caption.text
    shown.controls["prefetch"].value = 8
    assert "With prefetch 8" in shown.caption.text and not shown.message.text


def test_without_widgets_it_is_pictures_with_words():
    pictures = loader_calculator(interactive=False)
    assert isinstance(pictures, Pictures)
    for picture in pictures.pictures:
        assert picture.figure is not None
        assert "the device waits" in describe(picture.figure) and len(table(picture.figure)) == len(PREFETCHES)
